function __pgmill_names
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    $before[1] __complete (count $before) $before "$current" 2>/dev/null </dev/null
end
complete -c pgmill -k -a '(__pgmill_names)'
