//! Reading and writing coefficients that were refitted from telemetry.

use baton_pacing::refit::DeviceReport;

use super::db::{Row, args};
use super::{Store, StoreError, now_ms, sql};
use crate::learn::coefficients::{ALL, Coefficients, Known, decided};
use crate::learn::cost::Measured;

/// The largest value that is read, in milliseconds: no device, cloud or network is slower.
const VALUE_MAX: f64 = 60_000.0;
/// Coefficients that no replica has written for this long are deleted, in seconds. Each replica writes its
/// own every minute.
const FORGET_AFTER_S: i64 = 3600;
const CLOUD: [&str; 4] = ["base_ms", "prefill_ms_per_token", "decode_ms", "refine_ms"];
const DEVICE: [&str; 3] = ["prefill_ms_per_token", "prefill_ms_per_token2", "decode_ms"];
const NETWORK: [&str; 1] = ["network_ms"];

impl Store {
    /// Reads the coefficients that were written last, about as many classes as a service tracks. Skips a
    /// class if one of its values is missing or out of bounds.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn coefficients(&self) -> Result<Coefficients, StoreError> {
        let rows = self.pool.rows(&sql::COEFFICIENTS, args![]).await?;
        let rows = rows.iter().map(figure).collect::<Result<Vec<Figure>, StoreError>>()?;
        let cloud = values(&rows, "cloud", ALL, CLOUD).map(|(values, _)| {
            let [base_ms, prefill_ms_per_token, decode_ms, refine_ms] = values;
            Measured { base_ms, prefill_ms_per_token, decode_ms, refine_ms }
        });
        let decided = decided(&self.device_classes().await?);
        let mut known = Coefficients { cloud, decided, ..Coefficients::default() };
        for row in &rows {
            let name = row.name.as_str();
            if let Some((values, samples)) = values(&rows, "device", name, DEVICE) {
                let [prefill_ms_per_token, prefill_ms_per_token2, decode_ms] = values;
                let value = DeviceReport { prefill_ms_per_token, prefill_ms_per_token2, decode_ms };
                known.devices.insert(name.to_owned(), Known { value, samples });
            }
            if let Some(([value], samples)) = values(&rows, "network", name, NETWORK) {
                known.networks.insert(name.to_owned(), Known { value, samples });
            }
        }
        Ok(known)
    }

    /// Writes the present coefficients. Classes that are not in `known` stay, until nobody has written them
    /// for an hour.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer; nothing is changed then.
    pub async fn keep_coefficients(&self, known: &Coefficients) -> Result<(), StoreError> {
        let now_s = now_ms() / 1000;
        let mut tx = self.pool.begin_write().await?;
        for row in figures(known) {
            let values = args![&row.kind, &row.name, &row.figure, row.value, row.samples, now_s];
            tx.execute(&sql::COEFFICIENT_PUT, values).await?;
        }
        tx.execute(&sql::COEFFICIENTS_FORGET, args![now_s - FORGET_AFTER_S]).await?;
        tx.commit().await
    }
}

/// One row.
struct Figure {
    kind: String,
    name: String,
    figure: String,
    value: f64,
    samples: u32,
}

fn figure(row: &Row) -> Result<Figure, StoreError> {
    Ok(Figure {
        kind: row.text("kind")?,
        name: row.text("name")?,
        figure: row.text("figure")?,
        value: row.real("value")?,
        samples: row.small("samples")?,
    })
}

fn figures(known: &Coefficients) -> Vec<Figure> {
    let mut rows = Vec::new();
    let mut put = |kind: &str, name: &str, samples: u32, figures: &[(&str, f64)]| {
        rows.extend(figures.iter().map(|&(figure, value)| Figure {
            kind: kind.to_owned(),
            name: name.to_owned(),
            figure: figure.to_owned(),
            value,
            samples,
        }));
    };
    if let Some(cloud) = &known.cloud {
        let values = [cloud.base_ms, cloud.prefill_ms_per_token, cloud.decode_ms, cloud.refine_ms];
        put("cloud", ALL, 0, &std::array::from_fn::<_, 4, _>(|index| (CLOUD[index], values[index])));
    }
    for (name, &Known { value, samples }) in &known.devices {
        let values = [value.prefill_ms_per_token, value.prefill_ms_per_token2, value.decode_ms];
        put("device", name, samples, &std::array::from_fn::<_, 3, _>(|index| (DEVICE[index], values[index])));
    }
    for (name, &Known { value, samples }) in &known.networks {
        put("network", name, samples, &[(NETWORK[0], value)]);
    }
    rows
}

/// Returns the named values of one class, and the number of samples of the first. `None` if one is missing.
fn values<const N: usize>(
    rows: &[Figure],
    kind: &str,
    name: &str,
    figures: [&str; N],
) -> Option<([f64; N], u32)> {
    let find = |figure: &str| {
        rows.iter().find(|row| {
            row.kind == kind && row.name == name && row.figure == figure && row.value <= VALUE_MAX
        })
    };
    let samples = find(figures[0])?.samples;
    let mut values = [0.0; N];
    for (value, figure) in values.iter_mut().zip(figures) {
        *value = find(figure)?.value;
    }
    Some((values, samples))
}
