//! The integer programme for one `k`, solved by HiGHS. Without the feature `halda` it returns an error that
//! says so.

use super::coefficients::{Coefficients, Set};
#[cfg(feature = "halda")]
use super::coefficients::{counts_gpu_layers, gpu_layers, layer_bytes, room};
use super::{RingSearch, Solution};
use crate::plan::PlanError;
#[cfg(feature = "halda")]
use highs::{HighsModelStatus, RowProblem, Sense};

#[cfg(not(feature = "halda"))]
impl RingSearch<'_> {
    pub(super) fn solve(
        &mut self,
        _: &Coefficients,
        _: &[Set],
        _: usize,
    ) -> Result<Option<Solution>, PlanError> {
        Err(PlanError::NoSolver)
    }
}

#[cfg(feature = "halda")]
impl RingSearch<'_> {
    /// Solves eqs. (6) to (10) for one `k`; `None` if there is no solution.
    pub(super) fn solve(
        &mut self,
        coefficients: &Coefficients,
        sets: &[Set],
        k: usize,
    ) -> Result<Option<Solution>, PlanError> {
        let (places, layers) = (self.ring.len(), self.costs.model.layers);
        let window = layers / k;
        if window < places {
            return Ok(None);
        }
        self.programmes += 1;
        let rounds = k as f64;
        let mut programme = RowProblem::new();
        let mut w = Vec::new();
        let mut n = Vec::new();
        for place in 0..places {
            let most = gpu_layers(self.costs, self.ring, place, k).min(window);
            w.push(programme.add_integer_column(rounds * coefficients.a[place], 1.0..=window as f64));
            n.push(programme.add_integer_column(rounds * coefficients.b[place], 0.0..=most as f64));
        }
        programme.add_row(window as f64..=window as f64, w.iter().map(|w| (*w, 1.0)));
        for place in 0..places {
            programme.add_row(0.0.., [(w[place], 1.0), (n[place], -1.0)]);
            let each = layer_bytes(self.costs);
            let bound = room(self.costs, self.ring, place) / (rounds * each);
            let on_cpu = if counts_gpu_layers(self.device(place)) {
                vec![(w[place], 1.0)]
            } else {
                vec![(w[place], 1.0), (n[place], -1.0)]
            };
            // The inequalities of A.3 are strict, and windows are whole numbers.
            match sets[place] {
                Set::M4 => programme.add_row(..=bound.ceil() - 1.0, on_cpu),
                _ => programme.add_row(bound.floor() + 1.0.., on_cpu),
            };
        }
        let mut model = programme.optimise(Sense::Minimise);
        model.make_quiet();
        let solved = model.solve();
        match solved.status() {
            HighsModelStatus::Optimal => {}
            HighsModelStatus::Infeasible | HighsModelStatus::UnboundedOrInfeasible => return Ok(None),
            status => return Err(PlanError::Solver { rounds: k, status: format!("{status:?}") }),
        }
        let columns = solved.get_solution();
        let whole = |at: usize| columns.columns()[at].round() as usize;
        let (w, n): (Vec<usize>, Vec<usize>) =
            (0..places).map(|place| (whole(2 * place), whole(2 * place + 1))).unzip();
        let per_round: f64 = (0..places)
            .map(|m| coefficients.a[m] * w[m] as f64 + coefficients.b[m] * n[m] as f64 + coefficients.c[m])
            .sum();
        Ok(Some(Solution { w, n, k, objective_s: rounds * per_round + coefficients.kappa }))
    }
}
