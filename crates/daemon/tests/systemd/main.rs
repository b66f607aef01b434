//! weft as a service of a real systemd: weft@.service as it is shipped, in a container that boots this
//! machine's own system on a copy in memory. One boot serves all tests; each scenario is a function of a file
//! in `inside/`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod container;
mod notify;

macro_rules! scenarios {
    ($($name:ident)*) => {
        /// In the order in which they run: some go on from what the one before left.
        pub(crate) const SCENARIOS: &[&str] = &[$(stringify!($name)),*];
        $(
        #[test]
        fn $name() {
            container::check(stringify!($name));
        }
        )*
    };
}

scenarios! {
    units_are_right
    start_is_ready_and_carries_traffic
    nothing_secret_is_seen
    a_reload_under_load_ends_no_connection
    the_operator_reads_how_it_goes
    what_concerns_an_interface_or_a_peer_is_found_in_the_journal
    a_restart_under_load_ends_no_connection
    a_killed_daemon_comes_back
    the_watchdog_restarts_a_daemon_that_stands_still_and_no_other
    one_thread_that_is_stuck_is_named_and_restarts_the_daemon
    keys_come_as_credentials
    a_file_that_is_missing_or_wrong_is_told_and_not_tried_for_ever
    the_sandbox_holds
    a_full_tunnel_has_a_profile_of_its_own
    the_daemon_may_be_root_where_it_has_to
    a_providers_file_runs_as_it_is
    a_providers_file_that_is_missing_or_wrong_is_one_line
    ports_below_1024_need_one_capability_more
    a_configuration_may_be_longer_than_a_credential
    name_servers_go_to_the_real_resolved_and_stay_through_a_restart
    name_servers_survive_what_happens_to_the_real_resolved
    a_clean_stop_leaves_nothing_behind
}
