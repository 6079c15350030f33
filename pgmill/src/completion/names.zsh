_pgmill() {
    local -a names
    names=("${(@f)$("${words[1]}" __complete $((CURRENT - 1)) "${words[@]}" 2>/dev/null </dev/null)}")
    names=("${(@)names:#}")
    if (( ${#names} )); then
        compadd -V names -a names
    else
        _pgmill_arguments "$@"
    fi
}

if [ "$funcstack[1]" = "_pgmill" ]; then
    _pgmill "$@"
else
    compdef _pgmill pgmill
fi
