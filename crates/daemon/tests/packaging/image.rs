//! The image for containers: what is in it, and the tunnel of a container with the capabilities, the filter
//! and the mounts of Docker.

use std::sync::LazyLock;

use super::{Run, check, is_root, is_there, scenarios_of};

static RUN: LazyLock<Run> = LazyLock::new(|| {
    if !is_root() {
        return Run::NotHere("the containers of the test need root".to_owned());
    }
    match ["ip", "jq", "nft", "nsenter", "ping", "unshare"].into_iter().find(|program| !is_there(program)) {
        Some(program) => Run::NotHere(format!("{program} is not installed")),
        None => {
            let directory = tempfile::tempdir().unwrap();
            scenarios_of("image.sh", directory.path(), &[env!("CARGO_BIN_EXE_weft")])
        }
    }
});

macro_rules! scenarios {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            check(&RUN, stringify!($name));
        }
    )* };
}

scenarios! {
    the_image_has_weft_and_nft_and_no_shell
    a_container_of_docker_has_its_tunnel_and_leaves_nothing
    a_crash_in_a_container_lets_nothing_past_the_tunnel
    a_container_of_an_ordinary_user_has_its_tunnel
    a_container_without_net_admin_says_so
    an_engine_builds_the_image
}
