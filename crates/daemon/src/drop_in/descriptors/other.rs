//! Platforms where weft adopts no descriptors.

use weft_config::InterfaceName;
use weft_tun::Descriptor as Queue;
use weft_uapi::Descriptor as Socket;

const REASON: &str = "weft takes over no descriptors on this platform yet";

pub(super) fn take_queue(_: i32) -> Result<(Queue, InterfaceName), String> {
    Err(REASON.to_owned())
}

pub(super) fn take_socket(_: i32) -> Result<Socket, String> {
    Err(REASON.to_owned())
}
