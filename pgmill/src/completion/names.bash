_pgmill_with_names() {
    _pgmill "$@"
    local line names=()
    while IFS= read -r line; do
        names+=("$(printf '%q' "$line")")
    done < <("${COMP_WORDS[0]}" __complete "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null </dev/null)
    if [[ ${#names[@]} -gt 0 ]]; then
        COMPREPLY=("${names[@]}")
    fi
}
complete -F _pgmill_with_names -o bashdefault -o default pgmill
