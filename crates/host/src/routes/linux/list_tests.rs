//! Tests with a kernel that is played, and a clock that goes on when all tasks wait.

use std::time::Duration;

use nix::sys::socket::{AddressFamily as Domain, SockFlag, SockType, socketpair};
use rtnetlink::packet_core::{DoneMessage, NLM_F_MULTIPART, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;

const TABLES: [u32; 3] = [7, 8, 51_820];

/// Returns the tables in use according to a kernel that waits before each message, and has a route in each of
/// [`TABLES`].
fn tables_of_a_kernel(pause: Duration) -> Result<BTreeSet<u32>, RouteError> {
    let (ours, theirs) =
        socketpair(Domain::Unix, SockType::SeqPacket, None, SockFlag::SOCK_NONBLOCK).unwrap();
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.spawn(async move { answer_all(UnixStream::from_std(theirs.into()).unwrap(), pause).await });
    let connection = Connection::of(&ours, &runtime).unwrap();
    Netlink { runtime, socket: ours, connection: Mutex::new(connection) }.tables_in_use()
}

/// Answers each request. The socket keeps messages apart, unlike those that its type is for.
async fn answer_all(mut socket: UnixStream, pause: Duration) {
    let mut request = [0; 4096];
    loop {
        let len = socket.read(&mut request).await.unwrap();
        let header = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&request[..len]).unwrap().header;
        let link = Link { name: "wg0".to_owned(), index: 7, mtu: 1420 };
        let route = |table| route_message(&link, "10.0.0.0/8".parse().unwrap(), table);
        let routes = TABLES.map(|table| RouteNetlinkMessage::NewRoute(route(table)).into());
        for payload in routes.into_iter().chain([NetlinkPayload::Done(DoneMessage::default())]) {
            tokio::time::sleep(pause).await;
            let mut message = NetlinkMessage::new(header, payload);
            message.header.flags = NLM_F_MULTIPART;
            message.finalize();
            let mut bytes = vec![0; message.buffer_len()];
            message.serialize(&mut bytes);
            socket.write_all(&bytes).await.unwrap();
        }
    }
}

#[test]
fn a_list_may_take_long_as_long_as_it_goes_on() {
    let tables = tables_of_a_kernel(TIMEOUT - Duration::from_secs(1)).unwrap();
    assert_eq!(tables, BTreeSet::from(TABLES));
}

#[test]
fn a_list_that_does_not_go_on_is_an_error() {
    let error = tables_of_a_kernel(TIMEOUT + Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.to_string(), "cannot list the routes: the kernel did not answer within 10 s");
}
