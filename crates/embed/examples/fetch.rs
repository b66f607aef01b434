//! Fetches a page of a server behind a tunnel, without a device or a right: `fetch FILE HOST PORT PATH`.

use std::error::Error;
use std::path::Path;

use tokio::io::{AsyncWriteExt as _, copy, stdout};
use weft_embed::{Settings, Tunnel};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, host, port, path] = &arguments[..] else {
        return Err("usage: fetch FILE HOST PORT PATH".into());
    };
    let tunnel = Tunnel::open(Settings::read(Path::new(file))?).await?;
    let mut connection = tunnel.connect(host, port.parse()?).await?;
    connection.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    copy(&mut connection, &mut stdout()).await?;
    drop(connection);
    tunnel.drained().await;
    for peer in tunnel.peers().await? {
        eprintln!("{}: {} bytes received, {} sent", peer.public_key, peer.rx_bytes, peer.tx_bytes);
    }
    tunnel.close().await;
    Ok(())
}
