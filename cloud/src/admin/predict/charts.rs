//! Shows a prediction as charts and sentences.

use super::{Curve, Point, Prediction};
use crate::admin::chart::{Across, Axis, Chart, Line, Mark, Region, grouped};
use crate::learn::forecast::digits;

/// The most quality curves that are drawn.
const QUALITY_MAX: usize = 3;

impl Prediction {
    /// Summarizes the plan in one line, also for screen readers.
    #[must_use]
    pub fn summary(&self) -> String {
        let (plan, predicted) = (&self.plan, &self.plan.predicted);
        format!(
            "r {}, L {}: first token {} ms, device ready (TTFT_d) {} ms, gap {} ms{}",
            digits(plan.ratio),
            plan.assist_tokens,
            grouped(predicted.ttft_c_ms, 0),
            grouped(predicted.ttft_d_ms, 0),
            grouped(predicted.gap_ms, 1),
            if plan.keeps_tau { "" } else { ", over tau" },
        )
    }

    /// Returns the charts, the one of TTFT_d first.
    #[must_use]
    pub fn charts(&self) -> Vec<Chart> {
        let mut charts = vec![self.ttft_chart(), self.gap_chart()];
        charts.extend(self.slot_chart());
        charts.extend(self.quality_chart());
        charts
    }

    fn ttft_chart(&self) -> Chart {
        let (plan, alone) = (&self.plan, self.plan.predicted.device_alone_ms);
        let lines = lines(&self.ttft_d_over_ratio);
        let top = highest(&self.ttft_d_over_ratio[..1]).max(alone) * 1.05;
        let region = self.ratio_feasible.map(|ratio| Region {
            from: ratio.from,
            to: ratio.to,
            name: format!("r may lie from {} to {}", digits(ratio.from), digits(ratio.to)),
        });
        let place = match &region {
            Some(region) => format!("Refining pays while {}.", region.name),
            None => "Refining saves nothing here.".to_owned(),
        };
        Chart {
            id: "ttft",
            title: format!("TTFT_d over r, {} tokens", grouped(f64::from(self.prompt_tokens), 0)),
            description: format!(
                "Time until {} has its own KV cache. At r {} it is {} ms. {place}",
                self.device_class,
                digits(plan.ratio),
                grouped(plan.predicted.ttft_d_ms, 0),
            ),
            x: Axis::new("r, share of the content kept", "", 0.0, 1.0),
            y: Axis::from_zero("TTFT_d", "ms", top),
            decimals: (3, 1),
            lines,
            region,
            marks: vec![Mark {
                across: Across::Y,
                value: alone,
                text: "whole prompt, from t = 0".to_owned(),
            }],
            chosen: Some((plan.ratio, plan.predicted.ttft_d_ms, format!("r {}", digits(plan.ratio)))),
        }
    }

    fn gap_chart(&self) -> Chart {
        let (plan, tau_ms) = (&self.plan, self.figures.tau_ms);
        let lines = lines(&self.gap_over_assist);
        let points = &self.gap_over_assist[0].points;
        let last = points.last().map_or(16.0, |point| point.x);
        let top = (2.5 * tau_ms).max(plan.predicted.gap_ms * 1.2);
        let region = self.assist_feasible.map(|assist| Region {
            from: assist.from,
            to: assist.to,
            name: format!("L may lie from {} to {}", grouped(assist.from, 0), grouped(assist.to, 0)),
        });
        let place = region
            .as_ref()
            .map_or("No L keeps tau and the cloud's time.".to_owned(), |region| format!("{}.", region.name));
        let drawn = plan.verdict != "cloud_alone" && f64::from(plan.assist_tokens) <= last;
        Chart {
            id: "gap",
            title: format!("Gap between tokens over L, r {}", digits(plan.ratio)),
            description: format!(
                "The gap up to the takeover. At L {} it is {} ms, tau is {} ms. {place}",
                plan.assist_tokens,
                grouped(plan.predicted.gap_ms, 1),
                digits(tau_ms),
            ),
            x: Axis::new("L, tokens the cloud writes", "", 0.0, last),
            y: Axis::from_zero("gap", "ms", top),
            decimals: (0, 1),
            lines,
            region,
            marks: vec![Mark {
                across: Across::Y,
                value: tau_ms,
                text: format!("tau {} ms", digits(tau_ms)),
            }],
            chosen: drawn.then(|| {
                (f64::from(plan.assist_tokens), plan.predicted.gap_ms, format!("L {}", plan.assist_tokens))
            }),
        }
    }

    /// Draws what verification costs the cloud, beside a release at L and the whole answer.
    fn slot_chart(&self) -> Option<Chart> {
        let (slots, plan) = (self.slot_over_assist.as_ref()?, &self.plan);
        let points = |points: &[Point]| points.iter().map(|point| (point.x, point.y)).collect();
        let assist = f64::from(plan.assist_tokens.max(1));
        let at = |points: &[Point]| points.iter().find(|point| point.x == assist).map(|point| point.y);
        let (verified, released) = (at(&slots.verified)?, at(&slots.released)?);
        let answer = f64::from(slots.answer_tokens);
        Some(Chart {
            id: "slot",
            title: format!("Time in the cloud's slots over L, {} tokens", grouped(answer, 0)),
            description: format!(
                "An answer of {} tokens, without its prompt, if {} of the drafted tokens are accepted. At L {} it takes \
                 {} ms with verification, {} ms if the device writes on alone, and {} ms if the cloud writes all of it.",
                grouped(answer, 0),
                digits(slots.acceptance),
                plan.assist_tokens,
                grouped(verified, 0),
                grouped(released, 0),
                grouped(slots.whole_ms, 0),
            ),
            x: Axis::new("L, tokens the cloud writes", "", 0.0, answer),
            y: Axis::from_zero("slot time", "ms", slots.whole_ms * 1.05),
            decimals: (0, 0),
            lines: vec![
                Line::new("verified", points(&slots.verified)),
                Line::new("released at L", points(&slots.released)),
            ],
            region: None,
            marks: vec![Mark {
                across: Across::Y,
                value: slots.whole_ms,
                text: "the cloud writes all".to_owned(),
            }],
            chosen: Some((assist, verified, format!("L {}", plan.assist_tokens))),
        })
    }

    /// Draws the curves of one metric, because other metrics have another axis.
    fn quality_chart(&self) -> Option<Chart> {
        let first = self.quality.first()?;
        let of_metric = self.quality.iter().filter(|quality| quality.metric == first.metric);
        let lines = of_metric.take(QUALITY_MAX).map(|quality| Line {
            name: quality.name.clone(),
            points: quality.points.iter().map(|point| (point.r, point.score)).collect(),
            band: quality.points.iter().map(|point| (point.low, point.high)).collect(),
        });
        let ratio = self.plan.ratio;
        let assist =
            first.assist_tokens.map_or("L as the optimizer chooses it".to_owned(), |l| format!("L {l}"));
        let corrector = first.corrector.as_deref().unwrap_or("nobody");
        Some(Chart {
            id: "quality",
            title: format!("Score ({}) over r", first.metric.replace('_', " ")),
            description: format!(
                "Answers to {} questions of {} with 95 % intervals, {assist}, corrected by {corrector}; the full prompt \
                 scores {:.3}. Beside them the parts that lose most at the chosen r.",
                first.questions, first.name, first.reference
            ),
            x: Axis::new("r, share of the content kept", "", 0.0, 1.0),
            y: Axis::new("score", "", 0.0, 1.0),
            decimals: (2, 3),
            lines: lines.collect(),
            region: None,
            marks: vec![
                Mark {
                    across: Across::Y,
                    value: first.reference,
                    text: format!("{}, full prompt", first.name),
                },
                Mark { across: Across::X, value: ratio, text: format!("r {}", digits(ratio)) },
            ],
            chosen: None,
        })
    }
}

fn lines(curves: &[Curve]) -> Vec<Line> {
    let line = |curve: &Curve| {
        Line::new(curve.device_class.clone(), curve.points.iter().map(|point| (point.x, point.y)).collect())
    };
    curves.iter().map(line).collect()
}

fn highest(curves: &[Curve]) -> f64 {
    curves.iter().flat_map(|curve| &curve.points).map(|point| point.y).fold(0.0, f64::max)
}
