//! Solves the linear program of the best gap in hindsight with HiGHS, to check the closed form.

use anyhow::ensure;
use baton_pacing::Millis;
use highs::{HighsModelStatus, RowProblem, Sense};

/// Returns `min G` subject to `s_0 = a_0`, `s_i >= a_i`, `0 <= s_i - s_(i-1) <= G`, in milliseconds.
pub(super) fn hindsight_ms(available_at: &[Millis]) -> anyhow::Result<f64> {
    let Some(&first) = available_at.first() else { return Ok(0.0) };
    let mut problem = RowProblem::new();
    let gap = problem.add_column(1.0, 0.0..);
    let mut before = problem.add_column(0.0, 0.0..=0.0);
    for &at in &available_at[1..] {
        let shown = problem.add_column(0.0, (at - first).as_f64()..);
        problem.add_row(0.0.., [(shown, 1.0), (before, -1.0)]);
        problem.add_row(0.0.., [(gap, 1.0), (shown, -1.0), (before, 1.0)]);
        before = shown;
    }
    let mut model = problem.optimise(Sense::Minimise);
    model.make_quiet();
    let solved = model.solve();
    ensure!(solved.status() == HighsModelStatus::Optimal, "hindsight programme: {:?}", solved.status());
    Ok(solved.get_solution().columns()[0])
}
