# fettlefs: sourced by every bash under `fettlefs run` (BASH_ENV). What a shell's command has changed is told on standard
# error when it ends; its exit status and its standard output stay as they are. `fettlefs run --no-effects` goes without.

# Your own BASH_ENV, as if it stood in our place. Its name is away meanwhile: were it ours, it would be read without end.
if [[ -n ${FETTLE_BASH_ENV-} && -r $FETTLE_BASH_ENV ]]; then
    __fettle_own=$FETTLE_BASH_ENV
    unset FETTLE_BASH_ENV
    . "$__fettle_own"
    { export FETTLE_BASH_ENV=$__fettle_own; unset __fettle_own; } 2> /dev/null
fi

# The outermost shell tells, so that nothing is told twice; of the run's own command the run itself tells at its end.
# One that has become another program (`exec`) tells no more.
# A trap of yours stays; only your BASH_ENV can have set one by now, and to ask for it bash forks.
{ __fettle_other=${FETTLE_TELLS-}; } 2> /dev/null
if [[ -n $__fettle_other && ${__fettle_other%%:*} != "$$" && /proc/${__fettle_other%%:*}/exe -ef ${__fettle_other#*:} ]]; then
    :
elif [[ ${FETTLE_COMMAND-} != "$$" && ( -z ${FETTLE_BASH_ENV-} || -z $(trap -p EXIT) ) ]]; then
    # Opened by this very process: by that the daemon knows which shell asks. No program is started.
    if read -r _ < "${BASH_SOURCE[0]%/*}/begin"; then
        export FETTLE_TELLS=$$:$BASH
        __fettle_at="${BASH_SOURCE[0]%/*}/end"
        __fettle_tell() {
            # Yours may be read-only, IFS too, which `mapfile` needs not.
            { local - __fettle_lines; set +xeu; } 2> /dev/null
            trap '' PIPE
            mapfile -t __fettle_lines < "$__fettle_at"
            (( ${#__fettle_lines[@]} == 0 )) || printf '%s\n' "${__fettle_lines[@]}" >&2
            return 0
        }
        trap __fettle_tell EXIT
    fi
fi 2> /dev/null
{ unset __fettle_other; } 2> /dev/null
