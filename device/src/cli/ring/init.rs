//! `baton ring init`: begins a ring, shows codes, and prints which devices joined.

use baton_terminal::{chain, errln, outln};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::{NetworkArgs, PORT, StateArgs, duration, print_line};
use crate::cli::values::{address, one_or_more};
use baton_ring::home::discovery::{Advert, Discovery};
use baton_ring::home::identity::{DeviceName, Identity, RingId};
use baton_ring::home::pairing::host::{Host, HostEvent, HostLimits};
use baton_ring::home::peers::{Membership, Role};
use baton_ring::home::state::StateFolder;

/// Text below the options.
pub(super) const HELP: &str = "\
On this device:       baton ring init
On every other one:   baton ring join CODE    (the six digits that `init` shows)
A code is good for one device, one try and ten minutes; then a new one is shown. After three wrong codes no device is
admitted until `init` is started again. Paired devices know each other by their keys and need no code.
Ctrl-C stops the waiting; devices that joined stay in the ring. Run `init` again to admit more.";

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Name of this device [default: its host name]
    #[arg(long)]
    name: Option<DeviceName>,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], PORT)), value_name = "HOST:PORT", value_parser = address)]
    listen: SocketAddr,
    /// Wait this long, e.g. 10m [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Wait for this many devices, and fail if fewer come
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = one_or_more)]
    devices: Option<NonZeroUsize>,
    /// Do not announce this device; other devices then need `--head ADDRESS`
    #[arg(long)]
    no_mdns: bool,
    /// Print one JSON object for each event, on a line of its own
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    state: StateArgs,
}

pub(super) fn run(args: &InitArgs, stop: &AtomicBool) -> anyhow::Result<()> {
    args.network.check()?;
    let folder = args.state.open()?;
    let identity = Identity::open(&folder, args.name.clone()).context("open this device's identity")?;
    let ring = own_ring(&folder, &identity)?;
    let listener = TcpListener::bind(args.listen).with_context(|| format!("listen on {}", args.listen))?;
    let address = listener.local_addr().context("read the bound address")?;
    let begun = json!({
        "event": "listening", "ring": ring, "name": identity.name(), "key": identity.public(),
        "fingerprint": identity.public().fingerprint(), "address": address,
    });
    if args.json {
        print_line(&begun)?;
    } else {
        let fingerprint = identity.public().fingerprint();
        outln!("ring {ring}: `{}` ({fingerprint}) admits devices on {address}", identity.name())?;
    }
    // Announced while devices are admitted.
    let _announced = if args.no_mdns { None } else { announce(args, &identity, ring, address) };
    let limits = HostLimits { devices: args.devices.map(NonZeroUsize::get), time: args.time };
    let host = Host { identity: &identity, ring, folder: &folder, limits };
    let mut locked = false;
    let joined = host.run(&listener, stop, &mut |event| {
        locked |= matches!(event, HostEvent::Locked);
        if let Err(err) = tell(&event, args.json) {
            tracing::warn!(%err, "an event was not printed");
        }
    })?;
    if args.json {
        print_line(&json!({ "event": "ended", "joined": joined, "locked": locked }))?;
    } else {
        outln!("{joined} {} joined", if joined == 1 { "device" } else { "devices" })?;
    }
    if locked {
        bail!("too many wrong codes: nobody is admitted until `baton ring init` is started again");
    }
    match args.devices {
        Some(wanted) if joined < wanted.get() => bail!("{joined} of {wanted} devices joined"),
        _ => Ok(()),
    }
}

/// Returns the ring that this device heads; makes a new one if it belongs to none.
fn own_ring(folder: &StateFolder, identity: &Identity) -> anyhow::Result<RingId> {
    match Membership::load(folder)? {
        Some(place) if place.role == Role::Head && place.head == *identity.public() => Ok(place.ring),
        Some(place) => bail!(
            "this device belongs to ring {}, which another device heads; `baton ring leave` leaves it",
            place.ring
        ),
        None => {
            let ring = RingId::random()?;
            Membership::new(ring, Role::Head, *identity.public()).save(folder)?;
            Ok(ring)
        }
    }
}

/// Announces this device. If multicast does not work, devices can still join by address.
fn announce(args: &InitArgs, identity: &Identity, ring: RingId, address: SocketAddr) -> Option<Discovery> {
    let advert = Advert { pairing: true, ..Advert::of(identity, Some(ring), address.port()) };
    let opened = Discovery::open(args.network.interfaces()).and_then(|mut discovery| {
        discovery.announce(&advert)?;
        Ok(discovery)
    });
    match opened {
        Ok(discovery) => Some(discovery),
        Err(err) => {
            errln!(
                "note: this device is not announced ({}); on others name it: `--head ADDRESS`",
                chain(&err)
            );
            None
        }
    }
}

fn tell(event: &HostEvent, as_json: bool) -> anyhow::Result<()> {
    match event {
        HostEvent::Code { code, life } if as_json => {
            let digits = code.to_string().replace(' ', "");
            print_line(&json!({ "event": "code", "code": digits, "seconds": life.as_secs() }))?;
        }
        HostEvent::Code { code, .. } => {
            outln!("on the other device: baton ring join {}", code.to_string().replace(' ', ""))?
        }
        HostEvent::Joined { name, key, address } if as_json => {
            let fingerprint = key.fingerprint();
            print_line(&json!({
                "event": "joined", "name": name, "key": key, "fingerprint": fingerprint, "address": address,
            }))?;
        }
        HostEvent::Joined { name, key, address } => {
            outln!("joined: `{name}` ({}) at {address}", key.fingerprint())?
        }
        HostEvent::Failed { from, error } if as_json => {
            print_line(&json!({ "event": "failed", "from": from, "error": chain(error) }))?;
        }
        HostEvent::Failed { from, error } => errln!("note: {from} has not joined: {}", chain(error)),
        HostEvent::Locked if as_json => print_line(&json!({ "event": "locked" }))?,
        HostEvent::Locked => {}
    }
    Ok(())
}
