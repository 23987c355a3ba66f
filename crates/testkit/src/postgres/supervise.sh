# Runs the shared Postgres server and ends it when no test uses it any more.
#
#   sh supervise.sh FOLDER LIMIT POSTGRES ARGUMENT...
#
# Tests that use the server make FOLDER/in_use again and again; this script takes it away once a
# second. After LIMIT seconds without one the server is idle. Seconds are counted, not compared with
# a clock: a machine that was asleep does not find its server idle when it wakes up.
#
# FOLDER/port invites tests to use the server. It goes away before the last look at in_use, and a
# test makes in_use before it looks at port: so either the test sees that it comes too late, or the
# script sees that there is a test. A server that is not idle after all goes on without invitation.
#
# Only a server that was ended on purpose has its folder deleted. One that ended by itself leaves
# its log to be read.

folder=$1
limit=$2
shift 2

"$@" &
server=$!
idle=0
while kill -0 "$server" 2>/dev/null; do
    sleep 1
    if rm "$folder/in_use" 2>/dev/null; then
        idle=0
    elif [ "$idle" -lt "$limit" ]; then
        idle=$((idle + 1))
    else
        rm -f "$folder/port"
        if [ -e "$folder/in_use" ]; then
            idle=0
        else
            kill -QUIT "$server"
            wait "$server"
            rm -rf "$folder"
            exit 0
        fi
    fi
done
wait "$server"
exit 1
