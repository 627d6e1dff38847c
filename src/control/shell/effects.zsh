# fettlefs: read by every zsh under `fettlefs run` as its .zshenv, for ZDOTDIR leads here. What a shell's command has
# changed is told on standard error when it ends; its exit status and its standard output stay as they are.
# `fettlefs run --no-effects` goes without.
__fettle_at=$ZDOTDIR

# Your own startup files, this one to begin with, as if nothing stood before them. The name of their directory is away
# meanwhile: were it ours, this file would be read without end.
if (( ${+FETTLE_ZDOTDIR} )); then
    ZDOTDIR=$FETTLE_ZDOTDIR
    unset FETTLE_ZDOTDIR
    __fettle_own=$ZDOTDIR
else
    unset ZDOTDIR
fi
if [[ -r ${ZDOTDIR:-$HOME}/.zshenv ]]; then
    . "${ZDOTDIR:-$HOME}/.zshenv"
fi
if (( ${+__fettle_own} )); then
    export FETTLE_ZDOTDIR=$__fettle_own
    unset __fettle_own
fi

# The outermost shell tells, so that nothing is told twice; of the run's own command the run itself tells at its end, and
# at a prompt sits a person. The shells that these two start are to tell: they find the way here by ZDOTDIR, which is
# lent to them alone, and not at all where it is yours or where startup files of yours are still to be read.
# A shell that has become another program (`exec`) tells no more.
__fettle_other=${FETTLE_TELLS-}
if [[ -n $__fettle_other && ${__fettle_other%%:*} != $$ && /proc/${__fettle_other%%:*}/exe -ef ${__fettle_other#*:} ]]; then
    :
elif [[ -o interactive && -z ${ZSH_EXECUTION_STRING-} ]]; then
    if (( ! ${+ZDOTDIR} )); then
        # One that you set at the prompt or in a startup file that is still to be read is yours from then on.
        __fettle_lend() { (( ${+ZDOTDIR} )) || export ZDOTDIR=$__fettle_at }
        __fettle_take_back() { if [[ ${ZDOTDIR-} == "$__fettle_at" ]]; then unset ZDOTDIR; fi }
        preexec_functions+=(__fettle_lend)
        precmd_functions=(__fettle_take_back ${precmd_functions-})
    fi
elif [[ ${FETTLE_COMMAND-} == $$ ]]; then
    if (( ! ${+ZDOTDIR} )) && [[ ! -o login && ! -o interactive ]]; then
        export ZDOTDIR=$__fettle_at
    fi
# Opened by this very process: by that the daemon knows which shell asks. No program is started.
elif { read -r __fettle_line < $__fettle_at/begin } 2> /dev/null; then
    __fettle_line=/proc/$$/exe
    export FETTLE_TELLS=$$:${__fettle_line:A}
    __fettle_tell() {
        { emulate -L zsh; setopt no_xtrace } 2> /dev/null
        (( ZSH_SUBSHELL || __fettle_told++ )) && return
        local __fettle_said
        trap '' PIPE
        # Zsh reads this itself, at once; `read` would ask the daemon for each byte.
        __fettle_said="$(<$__fettle_at/end)"
        [[ -z $__fettle_said ]] || print -r -u 2 -- $__fettle_said
    }
    integer -g __fettle_told=0
    # A trap, for without one zsh becomes its last command, and with `set -e` it calls no function. The function, for the
    # trap may be yours.
    trap __fettle_tell EXIT
    zshexit_functions+=(__fettle_tell)
fi
unset __fettle_line __fettle_other
