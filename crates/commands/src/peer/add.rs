//! `weft peer add`: a section in the gateway's file, and a file for the peer.

use std::io;
use std::path::Path;

use ipnet::IpNet;
use weft_config::exit::{Code, Error};
use weft_config::peers::{self, NewPeer};
use weft_config::{self as config, ClientSettings, Endpoint, PoolError};
use weft_host::put_new_private;
use weft_tunnel::{PrivateKey, PublicKey};
use zeroize::Zeroizing;

use super::gateway::{Gateway, hold_signals};
use super::{check_name, qr};
use crate::args::PeerAddArgs;
use crate::{keys, output};

/// Prints the file of the peer or writes it, and then adds the peer to that of the gateway: the key of the
/// peer is nowhere else. If the first is interrupted or fails, nothing has changed.
pub(super) fn run(args: &PeerAddArgs) -> Result<(), Error> {
    check_name(&args.name, &args.gateway)?;
    let mut gateway = Gateway::open(&args.gateway)?;
    gateway.refuse_name(&args.name, None)?;
    let all = peers::peers(gateway.text());
    if let Some(key) = args.public_key
        && let Some(other) = all.iter().find(|peer| peer.public_key == Some(key))
    {
        let name =
            other.name.as_deref().map_or_else(|| "without a name".to_owned(), |name| format!("named {name}"));
        return Err(gateway.failure(&format!("a peer {name} has this public key already")));
    }
    let own_key = gateway.public_key()?;
    if args.public_key == Some(own_key) {
        let reason = format!(
            "--public-key: this is the key of {} itself; give that of the peer, which `weft pubkey` prints there",
            gateway.config().interface.name
        );
        return Err(Error::new(Code::Usage, reason));
    }
    let interface = &gateway.config().interface;
    let clients = interface.host.clients.clone();
    let taken = all.iter().flat_map(|peer| peer.allowed_ips.iter().copied());
    let taken: Vec<IpNet> =
        taken.chain(clients.dns.servers.iter().map(|server| IpNet::from(*server))).collect();
    let addresses = config::next_free(&interface.addresses, &taken);
    let addresses = addresses.map_err(|error| match error {
        PoolError::NoNetwork => gateway.wrong(&error.to_string()),
        PoolError::UsedUp(_) => gateway.failure(&error.to_string()),
    })?;
    let endpoint = args.endpoint.clone().or_else(|| clients.endpoint.clone());
    let endpoint = endpoint.ok_or_else(|| no_endpoint(&gateway))?;
    if interface.settings.listen_port == 0 {
        return Err(gateway.wrong(&format!(
            "[Interface] has no ListenPort, and the port is another one after each start: peers could not reach it at \
             {endpoint}; add the line `ListenPort = {}`",
            endpoint.port()
        )));
    }
    let private_key = match args.public_key {
        Some(_) => None,
        None => Some(PrivateKey::generate().map_err(|error| {
            Error::new(Code::Failure, format!("cannot get random numbers from the system: {error}"))
        })?),
    };
    let public_key = args.public_key.or(private_key.as_ref().map(PrivateKey::public_key));
    let Some(public_key) = public_key else { return Err(gateway.failure("the peer has no key")) };
    let text = client_file(private_key.as_ref(), &addresses, &clients, &endpoint, own_key);
    let code = args.qr.then(|| qr::draw(&text)).transpose()?;

    let more = args
        .rate
        .iter()
        .flat_map(|rate| [format!("# weft: RateToPeer = {rate}"), format!("# weft: RateFromPeer = {rate}")]);
    let more = more.chain(args.expires.and_then(|expires| expires.0).map(|at| peers::expiry_line(Some(at))));
    let peer = NewPeer { name: args.name.clone(), public_key, allowed_ips: addresses, more: more.collect() };
    let new = peers::with_peer(gateway.text(), &peer);
    gateway.rehearse(&new)?;
    // Above a code that fills the window.
    if let Some(note) = without_name_servers(&clients, &args.name) {
        output::note(&note);
    }
    let is_standard_output = |out: &&Path| *out == Path::new("-");
    let out = args.out.as_deref().filter(|out| !is_standard_output(out));
    let not_added = |error: Error, more: &str| {
        Error::new(error.code(), format!("{error}; {} was not added{more}", args.name))
    };
    if let Some(out) = out.filter(|out| out.symlink_metadata().is_ok()) {
        return Err(not_added(not_written(out, &io::ErrorKind::AlreadyExists.into()), ""));
    }
    let is_text_printed = args.out.as_deref().map_or(code.is_none(), |out| is_standard_output(&out));
    let is_printed = code.is_some() || is_text_printed;
    if private_key.is_some() && out.is_none() && output::is_lost() {
        let reason = format!(
            "standard output is closed or /dev/null, and the private key of {0} would be lost; --out FILE writes it into a \
             file; {0} was not added",
            args.name
        );
        return Err(Error::new(Code::Failure, reason));
    }
    let print_text = || {
        if !is_text_printed {
            return Ok(());
        }
        if private_key.is_some() {
            keys::warn_of_readers();
        }
        output::print_once(&text)
    };
    let printed = code.as_ref().map_or(Ok(()), |code| output::print_once(code)).and_then(|()| print_text());
    let apply = |()| {
        hold_signals();
        out.map_or(Ok(()), |out| {
            put_new_private(out, text.as_bytes()).map_err(|error| not_written(out, &error))
        })?;
        let applied = gateway.apply(new);
        // Where the gateway's file could not be put back, the key is still of use.
        let is_in = peers::peers(gateway.text()).iter().any(|peer| peer.public_key == Some(public_key));
        if let Some(out) = out.filter(|_| !is_in) {
            let _ = std::fs::remove_file(out);
        }
        applied
    };
    printed.and_then(apply).map_err(|error| {
        let of_no_use = if is_printed { "; the file that was printed is not valid" } else { "" };
        not_added(error, of_no_use)
    })?;
    if let Some(out) = out {
        output::note(&format!("{} has the file of {}", out.display(), args.name));
    }
    Ok(())
}

fn not_written(out: &Path, error: &io::Error) -> Error {
    let code = Error::from(io::Error::from(error.kind())).code();
    let reason = match error.kind() {
        io::ErrorKind::AlreadyExists if out.metadata().is_ok_and(|entry| !entry.is_file()) => {
            let what = if out.is_dir() { "a directory" } else { "a device or a pipe" };
            format!(
                "this is {what}, and no file: give --out the path of a new file, or - for standard output"
            )
        }
        io::ErrorKind::AlreadyExists => {
            let advice = "remove it, or give --out another name";
            format!("there is a file already, perhaps with the key of another peer: {advice}")
        }
        _ => format!("cannot write it: {error}"),
    };
    Error::new(code, format!("{}: {reason}", out.display()))
}

fn no_endpoint(gateway: &Gateway) -> Error {
    let port = gateway.config().interface.settings.listen_port;
    let port = if port == 0 { "PORT".to_owned() } else { port.to_string() };
    gateway.wrong(&format!(
        "[Interface] does not say where peers reach this machine; add the line `# weft: Endpoint = HOST:{port}` with its \
         name or address, or give --endpoint HOST:{port}"
    ))
}

/// Says that a peer which sends everything here is told no name servers: its own may be out of reach then.
fn without_name_servers(clients: &ClientSettings, name: &str) -> Option<String> {
    let is_everything = |nets: &[IpNet]| nets.is_empty() || nets.iter().any(|net| net.prefix_len() == 0);
    (clients.dns.servers.is_empty() && is_everything(&clients.allowed_ips)).then(|| {
        format!(
            "the file of {name} has no DNS, and sends everything through the tunnel, where its own name servers may be \
             out of reach; the line `# weft: PeerDNS = ADDRESS` in [Interface] gives it others"
        )
    })
}

/// Returns the text of the peer's file. Without a private key it has a comment in its place.
fn client_file(
    private_key: Option<&PrivateKey>,
    addresses: &[IpNet],
    clients: &ClientSettings,
    endpoint: &Endpoint,
    gateway: PublicKey,
) -> Zeroizing<String> {
    let list = |nets: &[IpNet]| nets.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ");
    let key = private_key.map_or_else(
        || Zeroizing::new("# PrivateKey = (the private key of this peer)".to_owned()),
        |key| Zeroizing::new(format!("PrivateKey = {}", *key.to_base64())),
    );
    let dns = if clients.dns.is_empty() { String::new() } else { format!("DNS = {}\n", clients.dns) };
    // Without IPv6 in the tunnel IPv6 is refused there, and does not go past it.
    let everything = || "0.0.0.0/0, ::/0".to_owned();
    let allowed = if clients.allowed_ips.is_empty() { everything() } else { list(&clients.allowed_ips) };
    Zeroizing::new(format!(
        "[Interface]\n{}\nAddress = {}\n{dns}\n[Peer]\nPublicKey = {gateway}\nEndpoint = {endpoint}\n\
         AllowedIPs = {allowed}\nPersistentKeepalive = 25\n",
        *key,
        list(addresses)
    ))
}
