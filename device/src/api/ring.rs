//! The ring's status, as the head knows it now: a page for people, and JSON for programs.
//!
//! Shows device names and figures, and never any text of a prompt. If this device computes alone, the page
//! says so, and the JSON's `stats` is null.

use std::sync::Arc;

use askama::Template;
use axum::Json;
use axum::extract::State;
use axum::response::{Html, IntoResponse};
use serde::Serialize;

use super::ApiState;
use baton_ring::core::stats::{DeviceStats, LostDevice, RingStats};
use baton_ring::host::RingHandle;
use baton_ring::planning::explained;
use baton_ring::planning::{CurrentPlan, Planned};

/// Access to a running ring.
#[derive(Debug, Clone)]
pub struct RingView {
    /// Its figures.
    pub handle: RingHandle,
    /// Its plan.
    pub current_plan: CurrentPlan,
}

/// The reply of `GET /ring.json`.
#[derive(Debug, Serialize)]
struct RingStatus {
    stats: Option<RingStats>,
    planned: Option<Planned>,
}

impl RingStatus {
    fn of(state: &ApiState) -> Self {
        let view = state.ring.as_ref();
        Self {
            stats: view.map(|view| view.handle.stats()),
            planned: view.and_then(|view| view.current_plan.planned()),
        }
    }
}

#[derive(Template)]
#[template(path = "ring.html")]
struct Page {
    epoch: u64,
    rounds: usize,
    steps: u64,
    step_ms: String,
    predicted_ms: Option<String>,
    recoveries: u64,
    refused: u64,
    devices: Vec<Row>,
    fetching: Vec<String>,
    lost: Vec<LostDevice>,
    why: String,
}

/// A device's row in the table.
struct Row {
    name: String,
    layers: usize,
    memory_gb: String,
    compute_ms: String,
    wait_ms: String,
    send_ms: String,
    predicted_ms: String,
    disk_ms: String,
}

fn ms(ms: f64) -> String {
    format!("{ms:.1}")
}

impl Row {
    fn of(device: &DeviceStats, planned: Option<&Planned>) -> Self {
        let described = planned
            .and_then(|planned| planned.cluster.devices.iter().find(|known| known.name == device.name));
        let prediction = planned.and_then(|planned| planned.prediction.as_ref());
        let time = prediction
            .and_then(|prediction| prediction.devices.iter().find(|time| time.device == device.name));
        Self {
            name: device.name.clone(),
            layers: device.layers.len(),
            memory_gb: described.map_or_else(String::new, |known| format!("{:.1}", known.memory_bytes / 1e9)),
            compute_ms: ms(device.compute_ms),
            wait_ms: ms(device.wait_ms),
            send_ms: ms(device.send_ms),
            predicted_ms: time.map_or_else(String::new, |time| ms(time.total_s() * 1e3)),
            disk_ms: time.map_or_else(String::new, |time| ms(time.disk_s * 1e3)),
        }
    }
}

impl Page {
    fn of(status: RingStatus) -> Self {
        let stats = status.stats.unwrap_or_default();
        let planned = status.planned.as_ref();
        let explanation = planned.and_then(|planned| planned.explanation.as_ref());
        let prediction = planned.and_then(|planned| planned.prediction.as_ref());
        Self {
            epoch: stats.epoch,
            rounds: stats.rounds,
            steps: stats.epoch_steps,
            step_ms: ms(stats.step_ms),
            predicted_ms: prediction.map(|prediction| ms(prediction.token_s * 1e3)),
            recoveries: stats.recoveries,
            refused: stats.refused,
            devices: stats.devices.iter().map(|device| Row::of(device, planned)).collect(),
            fetching: stats.fetching,
            lost: stats.lost,
            why: explanation.map_or_else(String::new, |found| explained::lines(found, stats.rounds)),
        }
    }
}

pub(super) async fn page(State(state): State<Arc<ApiState>>) -> Html<String> {
    Html(Page::of(RingStatus::of(&state)).render().unwrap_or_else(|err| format!("no page: {err}")))
}

pub(super) async fn json(State(state): State<Arc<ApiState>>) -> impl IntoResponse {
    Json(RingStatus::of(&state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_devices_and_escapes_their_names() {
        let device = DeviceStats {
            name: "<b>desk".to_owned(),
            place: 0,
            layers: vec![0, 1, 2],
            compute_ms: 4.25,
            wait_ms: 1.0,
            send_ms: 0.5,
            bytes_in: 0,
            bytes_out: 0,
        };
        let fetching = vec!["<i>tablet".to_owned()];
        let stats = RingStats { epoch: 7, rounds: 1, devices: vec![device], fetching, ..Default::default() };
        let text = Page::of(RingStatus { stats: Some(stats), planned: None }).render().unwrap();
        assert!(text.contains("Epoch 7, 1 round of a token"), "{text}");
        assert!(text.contains("desk</td><td>3</td>") && text.contains("<td>4.2</td>"), "{text}");
        assert!(text.contains("tablet fetches its weights"), "{text}");
        assert!(!text.contains("<b>desk") && !text.contains("<i>tablet"), "{text}");
        let alone = Page::of(RingStatus { stats: None, planned: None }).render().unwrap();
        assert!(alone.contains("This device computes alone"), "{alone}");
    }
}
