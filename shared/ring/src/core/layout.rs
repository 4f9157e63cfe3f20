//! A plan as the ring runs it: the places in order, the head first, and the windows that a token passes.
//!
//! It is checked once, when it is made. After that every place and every layer of every window is known to
//! exist.

use baton_plan::{Plan, Window};

/// Why a plan cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// It does not cover the model.
    #[error("the plan's windows do not cover the model's {n_layers} layers once, in order")]
    NotWhole {
        /// Layers of the model.
        n_layers: usize,
    },
    /// The head is not first.
    #[error("the plan begins with `{first}`, must begin with the head `{head}`")]
    Head {
        /// The first device.
        first: String,
        /// The head.
        head: String,
    },
    /// A device has two places: a relay that also computes, or relays twice.
    #[error("`{name}` would stand in the ring twice")]
    Twice {
        /// The device.
        name: String,
    },
    /// More than a frame can express.
    #[error("{what}: {count}, must be at most {}", u16::MAX)]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many.
        count: usize,
    },
}

/// The place of each device, and what it computes when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Names of the devices in ring order: the head first, relays after the device that they relay for.
    pub names: Vec<String>,
    /// In the order in which a token passes them; places are positions in `names`.
    pub windows: Vec<Window>,
    /// For each place, bytes of its memory for weights that are used to read ahead while other devices
    /// compute.
    pub prefetch_bytes: Vec<u64>,
    /// Layers of the model.
    pub n_layers: usize,
}

impl Layout {
    /// Makes the layout of a plan for a model of so many layers.
    ///
    /// # Errors
    /// [`LayoutError`] if the plan is not for this model and this head.
    pub fn of_plan(plan: &Plan, head: &str, n_layers: usize) -> Result<Self, LayoutError> {
        if plan.layers != n_layers || !plan.is_whole() {
            return Err(LayoutError::NotWhole { n_layers });
        }
        let (mut names, mut places, mut prefetch_bytes) = (Vec::new(), Vec::new(), Vec::new());
        for share in &plan.shares {
            places.push(names.len());
            names.push(share.device.clone());
            names.extend(share.relays.iter().cloned());
            // Plans also come from files: a value that is not an amount of memory counts as 0.
            prefetch_bytes.push(share.prefetch_bytes as u64);
            prefetch_bytes.resize(names.len(), 0);
        }
        match names.first() {
            Some(first) if first == head => {}
            first => {
                let first = first.cloned().unwrap_or_default();
                return Err(LayoutError::Head { first, head: head.to_owned() });
            }
        }
        if let Some(at) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
            return Err(LayoutError::Twice { name: names.swap_remove(at) });
        }
        let mut windows = plan.windows();
        windows.iter_mut().for_each(|window| window.place = places[window.place]);
        for (what, count) in [("rounds", plan.rounds), ("layers", n_layers), ("places", names.len())] {
            if count > usize::from(u16::MAX) {
                return Err(LayoutError::TooMany { what, count });
            }
        }
        Ok(Self { names, windows, prefetch_bytes, n_layers })
    }

    /// Returns whether the head computes everything. Then relays have nothing to do.
    pub fn is_alone(&self) -> bool {
        self.windows.iter().all(|window| window.place == 0)
    }

    /// Returns the window that begins after so many layers.
    pub fn from(&self, layers_done: usize) -> Option<Window> {
        self.windows.iter().find(|window| window.begin == layers_done).copied()
    }

    /// Returns the layers of a place, ascending.
    pub fn layers_of(&self, place: usize) -> Vec<usize> {
        layers_of(&self.windows, place)
    }

    /// Returns whether a GPU computes the layer.
    pub fn is_on_gpu(&self, layer: usize) -> bool {
        self.windows.iter().any(|window| on_gpu(window).contains(&layer))
    }

    /// Returns how many layers a chunk has passed when it comes back to the head, if it was sent in `round`
    /// after `layers_done` layers.
    pub fn back(&self, round: usize, layers_done: usize) -> usize {
        let others = self.windows.iter().filter(|window| window.round == round && window.place != 0);
        others.map(|window| window.end).fold(layers_done, usize::max)
    }
}

/// Returns the layers of a place, ascending.
pub fn layers_of(windows: &[Window], place: usize) -> Vec<usize> {
    windows
        .iter()
        .filter(|window| window.place == place)
        .flat_map(|window| window.begin..window.end)
        .collect()
}

/// Returns the layers of a window that a GPU computes: its first ones.
fn on_gpu(window: &Window) -> std::ops::Range<usize> {
    window.begin..window.end.min(window.begin + window.gpu)
}

/// Returns the layers of a place that its GPU computes, ascending: the first ones of each window.
pub fn gpu_layers_of(windows: &[Window], place: usize) -> Vec<usize> {
    windows.iter().filter(|window| window.place == place).flat_map(on_gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_plan::Share;

    fn plan(rounds: usize, shares: &[(&str, usize, &[&str])]) -> Plan {
        let share = |(device, layers, relays): &(&str, usize, &[&str])| Share {
            device: (*device).to_owned(),
            layers: *layers,
            gpu_layers: 0,
            prefetch_bytes: 0.0,
            relays: relays.iter().map(|name| (*name).to_owned()).collect(),
        };
        let shares: Vec<Share> = shares.iter().map(share).collect();
        Plan { layers: shares.iter().map(|share| share.layers).sum(), rounds, shares }
    }

    #[test]
    fn relays_get_places_of_their_own() {
        let plan = plan(2, &[("a", 2, &["r"]), ("b", 3, &[])]);
        let layout = Layout::of_plan(&plan, "a", 5).unwrap();
        assert_eq!(layout.names, ["a", "r", "b"]);
        assert_eq!((layout.layers_of(0), layout.layers_of(1)), (vec![0, 2], vec![]));
        assert_eq!(layout.layers_of(2), [1, 3, 4]);
        assert!(!layout.is_alone());
        assert_eq!(layout.from(2).map(|w| (w.place, w.end)), Some((0, 3)));
        assert_eq!((layout.back(0, 1), layout.back(1, 3)), (2, 5));
    }

    #[test]
    fn a_gpu_has_the_first_layers_of_each_window() {
        let mut plan = plan(2, &[("a", 2, &[]), ("b", 5, &[])]);
        plan.shares[1].gpu_layers = 3;
        let layout = Layout::of_plan(&plan, "a", 7).unwrap();
        let gpu: Vec<_> = layout.windows.iter().map(|w| (w.place, w.begin, w.end, w.gpu)).collect();
        let layers: Vec<usize> = (0..7).filter(|layer| layout.is_on_gpu(*layer)).collect();
        assert_eq!(gpu_layers_of(&layout.windows, 1), layers, "{gpu:?}");
        assert_eq!((layers.len(), gpu_layers_of(&layout.windows, 0)), (3, vec![]));
        for window in layout.windows.iter().filter(|window| window.gpu > 0) {
            assert!(layers.contains(&window.begin), "{gpu:?}");
        }
    }

    #[test]
    fn a_head_with_everything_is_alone() {
        let layout = Layout::of_plan(&plan(3, &[("a", 5, &[]), ("b", 0, &[])]), "a", 5).unwrap();
        assert!(layout.is_alone() && layout.from(5).is_none());
    }

    #[test]
    fn plans_of_another_model_or_head_are_refused() {
        let two = plan(1, &[("a", 2, &[]), ("b", 3, &[])]);
        assert_eq!(Layout::of_plan(&two, "a", 6), Err(LayoutError::NotWhole { n_layers: 6 }));
        let head = LayoutError::Head { first: "a".into(), head: "b".into() };
        assert_eq!(Layout::of_plan(&two, "b", 5), Err(head));
        let twice = plan(1, &[("a", 2, &["b"]), ("b", 3, &[])]);
        assert_eq!(Layout::of_plan(&twice, "a", 5), Err(LayoutError::Twice { name: "b".into() }));
    }
}
