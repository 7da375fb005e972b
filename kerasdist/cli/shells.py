"""Scripts with which bash, zsh and fish complete kerasdist's command line."""

# The scripts call `kerasdist --complete WORD...`, which prints what the last word may become.
COMPLETE = "--complete"
SCRIPTS = {
    "bash": """\
# In ~/.bashrc: eval "$(kerasdist completion bash)"
_kerasdist() {
    local IFS=$'\\n'
    COMPREPLY=($(kerasdist --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _kerasdist kerasdist
""",
    "zsh": """\
# In ~/.zshrc, after compinit: eval "$(kerasdist completion zsh)"
_kerasdist() {
    local -a found
    found=("${(@f)$(kerasdist --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _kerasdist kerasdist
""",
    "fish": """\
# kerasdist completion fish > ~/.config/fish/completions/kerasdist.fish
function __kerasdist
    set -l found (kerasdist --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c kerasdist -f -a '(__kerasdist)'
""",
}
