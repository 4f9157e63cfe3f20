//! `baton ring join`: joins the ring that another device began, and computes for it.

use baton_terminal::outln;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::work::{WorkArgs, work};
use super::{NetworkArgs, PORT, StateArgs, print_line};
use crate::cli::interrupts::{Signal, Stopped};
use crate::cli::values::address;
use baton_ring::home::discovery::{Advert, Discovery, FoundDevice};
use baton_ring::home::identity::{DeviceName, Identity, PublicKey, RingId};
use baton_ring::home::pairing::{self, Code, PairingInfo};
use baton_ring::home::peers::{Membership, Peers, Role};
use baton_ring::home::state::StateFolder;
use baton_ring::wire::channel::{Channel, ChannelError, PROTOCOL_VERSION};

/// Text below the options.
pub(super) const HELP: &str = "\
The code is on the screen of the device that runs `baton ring init`. If the network blocks multicast, name that
device: `--head 192.168.1.20` or `--head 192.168.1.20:8018`. `baton ring doctor` explains why two devices do not find
each other. After pairing, this device computes for the head until Ctrl-C. Later, run `baton ring join` without a code.";

/// Shortest search for a head, so that a second one is noticed; then the longest.
const SEARCH_LEAST: Duration = Duration::from_secs(2);
const SEARCH_MOST: Duration = Duration::from_secs(15);
/// Longest time to connect to one address of a head.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct JoinArgs {
    /// The six digits on the head's screen; leave them out if this device has joined before
    code: Option<Code>,
    /// Address of the head [default: found by multicast DNS]
    #[arg(long, value_name = "HOST[:PORT]")]
    head: Option<String>,
    /// Name of this device [default: its host name]
    #[arg(long)]
    name: Option<DeviceName>,
    /// Address to listen on for the ring; port 0 takes a free one
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], PORT)), value_name = "HOST:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Do not announce this device; its head then finds it only at its last address
    #[arg(long)]
    no_mdns: bool,
    /// Print one JSON object for each event, on a line of its own
    #[arg(long)]
    json: bool,
    /// Stop after pairing; do not compute
    #[arg(long)]
    pair_only: bool,
    #[command(flatten)]
    work: WorkArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    state: StateArgs,
}

pub(super) fn run(args: &JoinArgs, stop: &AtomicBool) -> anyhow::Result<()> {
    args.network.check()?;
    let folder = args.state.open()?;
    let place = Membership::load(&folder)?;
    let identity = Identity::open(&folder, args.name.clone()).context("open this device's identity")?;
    // Bound before pairing, because the head is told the port.
    let listener = TcpListener::bind(args.listen).with_context(|| format!("listen on {}", args.listen))?;
    let port = listener.local_addr().context("read the bound address")?.port();
    let head = match (place, &args.code) {
        (Some(place), None) if place.role == Role::Worker => place.head,
        (Some(place), _) => {
            bail!("this device already belongs to ring {}; `baton ring leave` leaves it", place.ring)
        }
        (None, Some(code)) => paired(args, code, &folder, &identity, port, stop)?,
        (None, None) => {
            bail!("this device belongs to no ring yet: give the code that `baton ring init` shows")
        }
    };
    if args.pair_only {
        return Ok(());
    }
    // Lets a head find this device.
    let _announced = if args.no_mdns { None } else { announce(args, &folder, &identity, port) };
    work(&args.work, args.json, &folder, identity, head, listener, stop)
}

/// Announces this device while the result lives. If multicast does not work, its head finds it at its last
/// address.
fn announce(args: &JoinArgs, folder: &StateFolder, identity: &Identity, port: u16) -> Option<Discovery> {
    let ring = Membership::load(folder).ok().flatten().map(|place| place.ring);
    let opened = Discovery::open(args.network.interfaces()).and_then(|mut discovery| {
        discovery.announce(&Advert::of(identity, ring, port))?;
        Ok(discovery)
    });
    opened.inspect_err(|err| tracing::warn!(%err, "this device is not announced")).ok()
}

/// Pairs with the head that shows this code; returns the head's key.
fn paired(
    args: &JoinArgs,
    code: &Code,
    folder: &StateFolder,
    identity: &Identity,
    port: u16,
    stop: &AtomicBool,
) -> anyhow::Result<PublicKey> {
    let addresses = match &args.head {
        Some(head) => resolve(head)?,
        None => find(args, stop)?,
    };
    let channel = connect(&addresses, identity)?;
    let (address, key) = (channel.address(), *channel.peer());
    let own = PairingInfo { name: identity.name().clone(), port, ring: RingId([0; 8]) };
    let mut pin = |key: &PublicKey, head: &PairingInfo| {
        let mut peers = Peers::load(folder)?;
        peers.pin(*key, &head.name, SocketAddr::new(address.ip(), head.port))?;
        peers.save(folder)?;
        Membership::new(head.ring, Role::Worker, *key).save(folder)
    };
    let head = pairing::join(channel, identity, code, &own, &mut pin).context("pair with the head")?;
    tell(args, identity, &head, &key, address)?;
    Ok(key)
}

fn tell(
    args: &JoinArgs,
    identity: &Identity,
    head: &PairingInfo,
    key: &PublicKey,
    address: SocketAddr,
) -> anyhow::Result<()> {
    let (own, theirs) = (identity.public().fingerprint(), key.fingerprint());
    if args.json {
        let head = json!({
            "name": head.name, "key": key, "fingerprint": theirs, "address": address, "ring": head.ring,
        });
        return print_line(&json!({
            "event": "paired", "name": identity.name(), "key": identity.public(), "fingerprint": own,
            "head": head,
        }));
    }
    outln!(
        "`{}` ({own}) belongs to ring {}, headed by `{}` ({theirs}) at {address}",
        identity.name(),
        head.ring,
        head.name
    )?;
    if head.name == *identity.name() {
        outln!("both devices are called `{0}`, so the head calls this one `{0}-2` or the like", head.name)?;
    }
    Ok(())
}

/// Finds the addresses of a host; uses the default port if none is given.
fn resolve(head: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let named = head.to_socket_addrs().or_else(|_| (head, PORT).to_socket_addrs());
    let addresses: Vec<SocketAddr> =
        named.with_context(|| format!("find the address of `{head}`"))?.collect();
    if addresses.is_empty() {
        bail!("`{head}` has no address");
    }
    Ok(addresses)
}

/// Finds the addresses of the only head that admits devices on this network.
fn find(args: &JoinArgs, stop: &AtomicBool) -> anyhow::Result<Vec<SocketAddr>> {
    let discovery = Discovery::open(args.network.interfaces())
        .context("look for the head (or name it: --head ADDRESS)")?;
    let begun = Instant::now();
    loop {
        // Searches in short steps, so that Ctrl-C works; announcements heard before are returned at once.
        let heard = discovery.search(Duration::from_secs(1), &mut |_| false)?;
        if stop.load(Ordering::Relaxed) {
            bail!(Stopped(Signal::Interrupt));
        }
        let mut heads: Vec<FoundDevice> =
            heard.into_iter().filter(|found| found.pairing && !found.addresses.is_empty()).collect();
        if begun.elapsed() >= SEARCH_LEAST && !heads.is_empty() {
            return one_head(&mut heads);
        }
        if begun.elapsed() >= SEARCH_MOST {
            bail!(
                "no device that admits others was found in {} s: run `baton ring init` on the head, or name \
                 it: --head ADDRESS; `baton ring doctor` says more",
                SEARCH_MOST.as_secs()
            );
        }
    }
}

fn one_head(heads: &mut Vec<FoundDevice>) -> anyhow::Result<Vec<SocketAddr>> {
    if heads.len() > 1 {
        // Trying the code at the wrong head would use it up.
        let named: Vec<String> = heads
            .iter()
            .map(|found| format!("`{}` ({}) at {}", found.name, found.fingerprint, found.addresses[0]))
            .collect();
        bail!("several devices admit others: {}; say which: --head ADDRESS", named.join(", "));
    }
    let head = heads.pop().context("a head was found")?;
    if head.version != PROTOCOL_VERSION {
        bail!(ChannelError::Version { ours: PROTOCOL_VERSION, theirs: head.version });
    }
    Ok(head.addresses)
}

/// Connects to the first address that answers.
fn connect(addresses: &[SocketAddr], identity: &Identity) -> anyhow::Result<Channel> {
    let mut failed = Vec::new();
    for address in addresses {
        match Channel::connect_stranger(*address, identity, CONNECT) {
            Ok(channel) => return Ok(channel),
            Err(ChannelError::Unproven) => {
                bail!("the device at {address} admits nobody: run `baton ring init` there")
            }
            Err(ChannelError::Busy) => bail!("the head at {address} has too many callers at once: try again"),
            Err(err @ (ChannelError::Version { .. } | ChannelError::Cloned)) => return Err(err.into()),
            Err(err) => failed.push(format!("{address}: {err}")),
        }
    }
    bail!("no address of the head answers ({})", failed.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, version: u16) -> FoundDevice {
        let identity = Identity::generate(name.parse().unwrap()).unwrap();
        FoundDevice {
            name: identity.name().clone(),
            fingerprint: identity.public().fingerprint(),
            instance: "0123456789abcdef".to_owned(),
            ring: None,
            version,
            pairing: true,
            addresses: vec![SocketAddr::from(([10, 0, 0, 1], 1))],
        }
    }

    #[test]
    fn one_head_is_taken_and_several_are_named() {
        let addresses = one_head(&mut vec![found("a", PROTOCOL_VERSION)]).unwrap();
        assert_eq!(addresses, [SocketAddr::from(([10, 0, 0, 1], 1))]);
        let error =
            one_head(&mut vec![found("a", PROTOCOL_VERSION), found("b", PROTOCOL_VERSION)]).unwrap_err();
        assert!(error.to_string().contains("`a` (") && error.to_string().contains("`b` ("), "{error}");
        let error = one_head(&mut vec![found("a", 9)]).unwrap_err().to_string();
        assert!(error.contains("version 1") && error.contains("the other 9"), "{error}");
    }

    #[test]
    fn addresses_are_named_with_or_without_a_port() {
        assert_eq!(resolve("127.0.0.1").unwrap(), [SocketAddr::from(([127, 0, 0, 1], PORT))]);
        assert_eq!(resolve("127.0.0.1:9").unwrap(), [SocketAddr::from(([127, 0, 0, 1], 9))]);
        assert!(resolve("127.0.0.1:port").is_err());
    }
}
