# Daemons that stand still.

the_watchdog_restarts_a_daemon_that_stands_still_and_no_other() {
    local before process told
    # Two queues with threads, also where the machine has too few cores for them.
    drop_in /run weft@wg0 watchdog <<'UNIT'
[Service]
WatchdogSec=2
ExecStart=
ExecStart=/usr/bin/weft up --tun-threads 2 %i
UNIT
    systemctl restart weft@wg0
    process=$(pid weft@wg0)
    # Two of its times, in which an idle daemon has to be heard of.
    for _ in 1 2; do
        told=$(show WatchdogTimestampMonotonic weft@wg0)
        wait_for 10 watchdog_was_fed_since "$told"
    done
    is "$(pid weft@wg0)" "$process" "the same process"
    before=$(now)
    kill -STOP "$process"
    wait_for_another_process "$process"
    echo "traffic after $(ms_since "$before") with WatchdogSec=2"
    journal_has weft@wg0 "watchdog timeout"
}
watchdog_was_fed_since() { [ "$(show WatchdogTimestampMonotonic weft@wg0)" != "$1" ]; }

one_thread_that_is_stuck_is_named_and_restarts_the_daemon() {
    local thread before process
    for thread in "weft-tun-w1" "weft-packets"; do
        process=$(pid weft@wg0)
        through >&2
        before=$(now)
        hold_still "$process" "$thread" &
        wait_for_another_process "$process"
        echo -n "$thread: traffic after $(ms_since "$before"); "
    done
    journal_has weft@wg0 "no answer from weft-tun-w1:"
    journal_has weft@wg0 "no answer from the event loop:"
    rm /run/systemd/system/weft@wg0.service.d/watchdog.conf
    systemctl daemon-reload
    systemctl restart weft@wg0
}
# Stops one thread of a process (ptrace(2): PTRACE_ATTACH), and nothing else of it, until it dies (waitpid(2): __WALL).
hold_still() {
    local task
    task=$(grep -lx "$2" /proc/"$1"/task/*/comm | cut -d/ -f5)
    perl -e 'alarm 30; syscall(101, 16, $ARGV[0] + 0, 0, 0) == 0 or die "ptrace: $!"; 1 while waitpid(-1, 0x40000000) > 0' \
        "$task" >/dev/null
}
