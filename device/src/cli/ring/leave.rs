//! `baton ring leave`: takes this device out of its ring, or removes another device from it.

use anyhow::{Context as _, bail};
use baton_terminal::outln;
use clap::Args;
use serde_json::json;

use super::{StateArgs, print_line};
use baton_ring::home::identity::Identity;
use baton_ring::home::peers::{Membership, Peers};

#[derive(Debug, Args)]
pub(super) struct LeaveArgs {
    /// Remove the device of this name instead of leaving; it must pair again to come back
    #[arg(long, value_name = "NAME", conflicts_with = "forget_key")]
    device: Option<String>,
    /// Also delete this device's own key, e.g. after its folder was copied; it is then a new device to all
    /// others
    #[arg(long)]
    forget_key: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
}

pub(super) fn run(args: &LeaveArgs) -> anyhow::Result<()> {
    let folder = args.state.open()?;
    if let Some(name) = &args.device {
        let mut peers = Peers::load(&folder)?;
        let removed = peers.unpin(name).with_context(|| {
            let known: Vec<String> = peers.iter().map(|peer| format!("`{}`", peer.name)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("no device is called `{name}`; pinned are: {known}")
        })?;
        peers.save(&folder)?;
        if args.json {
            return print_line(&json!({ "event": "removed", "name": removed.name, "key": removed.key }));
        }
        outln!("removed `{}` ({})", removed.name, removed.key.fingerprint())?;
        return Ok(());
    }
    // Damaged files are removed too, because leaving is the way to get rid of them.
    let left = Membership::forget(&folder)?;
    let unpinned = Peers::forget(&folder)?;
    let forgotten = args.forget_key && Identity::forget(&folder)?;
    if !(left || unpinned || forgotten) {
        bail!("this device belongs to no ring");
    }
    if args.json {
        return print_line(&json!({ "event": "left", "key_forgotten": forgotten }));
    }
    outln!("this device belongs to no ring any more{}", if forgotten { ", and has no key" } else { "" })?;
    outln!("the others keep its key until they remove it: baton ring leave --device NAME")?;
    Ok(())
}
