//! The exact search over layers, GPU layers, reading ahead, rounds, and the set and order of devices.
//!
//! For a token time `T`, every device has a least time for each number of layers ([`crate::cost`]). Only the
//! number of layers and the ring connect the devices. So dynamic programming finds the least sum for that
//! `T`:
//!
//! * up to [`EXACT_MAX`] devices over sets of devices, each with its shortest ring: exact over all orders;
//! * beyond that along one order, in which devices may be skipped: exact for that order, which is then
//!   improved locally.
//!
//! The sum falls as `T` grows, and the search wants the least `T` whose sum is at most `T`. No bisection is
//! needed. Take the best shares for some `T`, among those whose disks could keep up with less. If their sum
//! is below `T`, they have a least time `T' < T` of their own; continue from there until nothing is gained.
//! Each step changes the shares, so this ends. It ends at the optimum: if the least sum for `T` is `T`
//! itself, every smaller time has a larger least sum.
//!
//! If a disk alone sets the time of a token, several numbers of rounds reach it. The search takes the one
//! that keeps the least memory for reading ahead; of those, the one that leaves the most time to spare.
//!
//! A device that takes part has a layer in every round; only the head may have none.

use crate::cluster::{Cluster, ModelShape, Workload};
use crate::cost::{Costs, Holding};
use crate::network::EXACT_MAX;
use crate::plan::{Plan, PlanError, Share};

mod line;
mod sets;

/// The most rounds that are tried.
pub const ROUNDS_MAX: usize = 16;

/// Restrictions of the search; none by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchOptions {
    /// Try only this number of rounds.
    pub rounds: Option<usize>,
    /// Keep the order of the cluster's devices instead of finding the best.
    pub fixed_order: bool,
    /// A device that must take part. (A head always does, even if only with text, embedding and output.)
    pub with: Option<String>,
}

/// Shares with device indices instead of names.
#[derive(Debug, Clone)]
struct Choice {
    /// The ring, the head first.
    ring: Vec<usize>,
    /// Layers of each device of the ring.
    layers: Vec<usize>,
}

/// The own times of one device for 0 to L layers.
type Row = Vec<f64>;

/// The input of the search for one head.
struct Field<'a> {
    costs: &'a Costs<'a>,
    head: usize,
    /// Ways of holding layers, by device and number of layers.
    holdings: Vec<Vec<Vec<Holding>>>,
}

impl<'a> Field<'a> {
    fn new(costs: &'a Costs<'a>, head: usize) -> Self {
        let layers = costs.model.layers;
        let of = |at: usize| (0..=layers).map(|count| costs.holdings(at, count, at == head)).collect();
        Self { costs, head, holdings: (0..costs.cluster.devices.len()).map(of).collect() }
    }

    /// Returns the way of holding that takes least time in a token of `token_s`, if its disk could keep up
    /// with less.
    fn least(&self, device: usize, layers: usize, rounds: usize, token_s: f64) -> Option<(&Holding, f64)> {
        let ways = self.holdings[device][layers].iter().filter(|held| held.reading_s() < token_s);
        let own = ways.filter_map(|held| held.own(rounds, token_s).map(|own| (held, own.seconds)));
        own.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the own times of all devices; infinite if a share is not allowed or not possible.
    fn rows(&self, rounds: usize, token_s: f64) -> Vec<Row> {
        let layers = self.costs.model.layers;
        let time = |device: usize, count: usize| {
            let empty = count == 0 && device != self.head;
            let narrow = count > 0 && count < rounds;
            if empty || narrow {
                return f64::INFINITY;
            }
            self.least(device, count, rounds, token_s).map_or(f64::INFINITY, |(_, seconds)| seconds)
        };
        (0..self.holdings.len())
            .map(|device| (0..=layers).map(|count| time(device, count)).collect())
            .collect()
    }

    /// Returns the holdings of `choice` in a token of `token_s`.
    fn held(&self, choice: &Choice, rounds: usize, token_s: f64) -> Vec<Holding> {
        let places = choice.ring.iter().zip(&choice.layers);
        let least = |(device, layers): (&usize, &usize)| self.least(*device, *layers, rounds, token_s);
        places.filter_map(|place| least(place).map(|(held, _)| *held)).collect()
    }
}

/// A dynamic programme that finds the least sum of own times and hops.
trait Programme {
    /// Returns the shares with the least sum, if that is below `limit`. One device alone has one round.
    fn least(&self, rows: &[Row], rounds: usize, limit: f64) -> Option<Choice>;
    /// Returns a lower bound of the hops once around, for any plan with more than one device.
    fn shortest_around(&self) -> f64;
}

/// The best plan of a head found so far.
#[derive(Debug, Clone)]
struct Best {
    token_s: f64,
    rounds: usize,
    choice: Choice,
    held: Vec<Holding>,
}

/// Improves `best` with plans of this head until none is better.
fn improve(field: &Field<'_>, programme: &dyn Programme, rounds: Option<usize>, best: &mut Option<Best>) {
    let most = ROUNDS_MAX.min(field.costs.model.layers).max(1);
    for rounds in rounds.map_or(1..=most, |rounds| rounds..=rounds) {
        loop {
            let limit = best.as_ref().map_or(f64::INFINITY, |best| best.token_s);
            if rounds > 1 && rounds as f64 * programme.shortest_around() >= limit {
                break;
            }
            let rows = field.rows(rounds, limit);
            let Some(choice) = programme.least(&rows, rounds, limit) else { break };
            let held = field.held(&choice, rounds, limit);
            let token_s = Costs::settle(&held, rounds, field.costs.hops.around(&choice.ring));
            if token_s >= limit {
                break;
            }
            *best = Some(Best { token_s, rounds, choice, held });
        }
    }
}

/// Returns the plan with the least time of a token.
///
/// # Errors
/// [`PlanError::Description`] for a wrong description, [`PlanError::Impossible`] if no plan exists.
pub fn search(
    cluster: &Cluster,
    model: &ModelShape,
    workload: Workload,
    options: &SearchOptions,
) -> Result<Plan, PlanError> {
    let costs = Costs::new(cluster, model, workload)?;
    let with = options.with.as_deref().and_then(|name| cluster.index(name));
    let heads = match &cluster.head {
        Some(name) => cluster.index(name).into_iter().collect(),
        None => (0..cluster.devices.len()).collect::<Vec<_>>(),
    };
    let mut best: Option<Best> = None;
    for head in heads {
        let field = Field::new(&costs, head);
        let others: Vec<usize> = (0..cluster.devices.len()).filter(|device| *device != head).collect();
        if others.len() < EXACT_MAX {
            let programme = sets::Sets::new(&costs.hops, head, &others, options.fixed_order, with);
            improve(&field, &programme, options.rounds, &mut best);
        } else {
            line::improve_orders(&field, &others, options, with, &mut best);
        }
    }
    let best = best.ok_or_else(|| costs.impossible(why_not(&costs)))?;
    let best = if options.rounds.is_none() { easiest(&costs, best) } else { best };
    Ok(named(&costs, &best))
}

/// What a number of rounds demands of the devices. Less memory is easier; if equal, less time is.
struct Demand {
    /// Bytes of memory kept for reading ahead.
    prefetch_bytes: f64,
    /// Seconds of all devices and hops together.
    busy_s: f64,
    rounds: usize,
    token_s: f64,
}

impl Demand {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let by_memory = self.prefetch_bytes.total_cmp(&other.prefetch_bytes);
        by_memory.then(self.busy_s.total_cmp(&other.busy_s)).then(self.rounds.cmp(&other.rounds))
    }
}

/// Returns the same shares in the number of rounds that takes no longer and demands least of the devices.
fn easiest(costs: &Costs<'_>, best: Best) -> Best {
    let around_s = costs.hops.around(&best.choice.ring);
    let narrow = best.choice.layers.iter().copied().filter(|layers| *layers > 0).min().unwrap_or(1);
    let most = if best.choice.ring.len() > 1 { narrow.min(ROUNDS_MAX) } else { 1 };
    let demand = |rounds: usize| {
        let token_s = Costs::settle(&best.held, rounds, around_s);
        let parts =
            Costs::parts(&best.held, rounds, around_s, token_s).filter(|_| token_s <= best.token_s)?;
        let prefetch_bytes = parts.iter().map(|own| own.prefetch).sum();
        let computing_s: f64 = parts.iter().map(|own| own.seconds).sum();
        Some(Demand { prefetch_bytes, busy_s: computing_s + rounds as f64 * around_s, rounds, token_s })
    };
    match (1..=most).filter_map(demand).min_by(Demand::cmp) {
        Some(Demand { rounds, token_s, .. }) => Best { rounds, token_s, ..best },
        None => best,
    }
}

fn named(costs: &Costs<'_>, best: &Best) -> Plan {
    let ring = &best.choice.ring;
    let name = |device: usize| costs.cluster.devices[device].name.clone();
    let parts = Costs::parts(&best.held, best.rounds, costs.hops.around(ring), best.token_s);
    let share = |place: usize| {
        let relays = costs.hops.relays(ring[place], ring[(place + 1) % ring.len()]);
        Share {
            device: name(ring[place]),
            layers: best.choice.layers[place],
            gpu_layers: best.held[place].gpu,
            prefetch_bytes: parts.as_ref().map_or(0.0, |parts| parts[place].prefetch),
            relays: relays.into_iter().map(name).collect(),
        }
    };
    Plan { layers: costs.model.layers, rounds: best.rounds, shares: (0..ring.len()).map(share).collect() }
}

/// Returns why no plan exists.
fn why_not(costs: &Costs<'_>) -> String {
    let layers = costs.model.layers;
    let most = |at: usize| {
        (0..=layers).rev().find(|count| !costs.holdings(at, *count, false).is_empty()).unwrap_or(0)
    };
    let devices = costs.cluster.devices.iter().enumerate();
    let each: Vec<String> =
        devices.map(|(at, device)| format!("`{}` can hold {} layers", device.name, most(at))).collect();
    format!("{} (with {} tokens of KV cache in each layer)", each.join(", "), costs.workload.context)
}

#[cfg(test)]
mod tests;
