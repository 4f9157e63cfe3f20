//! What the system says about power, heat and memory pressure while the program runs.
//!
//! Linux and Android only, from `/sys` and `/proc`. Elsewhere, and for what a system does not report, each
//! value is unknown. Files are read below a root folder, so that tests can use recorded systems.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// A battery with at most this share of its charge should be spared, in percent.
const LOW_PERCENT: u8 = 20;
/// Memory is short if tasks waited for it for this share of the last ten seconds, in percent.
const PRESSURE_PERCENT: f64 = 10.0;

/// The state of power, heat and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Power {
    /// Whether the battery is being discharged.
    pub on_battery: Option<bool>,
    /// Charge of the battery, in percent.
    pub charge_percent: Option<u8>,
    /// Power that the battery gives now, in watts.
    pub watts: Option<f64>,
    /// Whether a sensor is at the temperature from which the system slows itself down.
    pub hot: Option<bool>,
    /// Whether programs wait for memory.
    pub memory_short: Option<bool>,
}

impl Power {
    /// Reads the state of a Linux or Android system whose `/proc` and `/sys` are below `root`.
    #[must_use]
    pub fn read(root: &Path) -> Power {
        let batteries = batteries(root);
        let discharging = |battery: &PathBuf| word(&battery.join("status")).as_deref() == Some("Discharging");
        let power = |battery: &PathBuf| watts(battery).filter(|_| discharging(battery));
        let used = batteries.iter().filter_map(power).reduce(|a, b| a + b);
        Power {
            on_battery: (!batteries.is_empty()).then(|| batteries.iter().any(discharging)),
            charge_percent: batteries.iter().filter_map(|battery| number(&battery.join("capacity"))).min(),
            watts: used,
            hot: hot(root),
            memory_short: memory_short(root),
        }
    }

    /// Returns whether the device should compute less: its battery is low, or it is hot.
    #[must_use]
    pub fn spares(&self) -> bool {
        let low = self.charge_percent.is_some_and(|percent| percent <= LOW_PERCENT);
        self.hot == Some(true) || (self.on_battery == Some(true) && low)
    }

    /// Returns whether the device should compute only what somebody waits for: also on a full battery, or if
    /// memory is short.
    #[must_use]
    pub fn rests_when_idle(&self) -> bool {
        self.spares() || self.on_battery == Some(true) || self.memory_short == Some(true)
    }
}

fn word(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    word(path)?.parse().ok()
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.sort_unstable();
    found
}

/// Returns the batteries of the machine itself, without those of mice and pens.
fn batteries(root: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| {
        word(&path.join("type")).as_deref() == Some("Battery")
            && word(&path.join("scope")).is_none_or(|scope| scope == "System")
    };
    folders(&root.join("sys/class/power_supply")).into_iter().filter(is_own).collect()
}

/// Returns the power that a battery gives, from its power or its current and voltage (micro units).
fn watts(battery: &Path) -> Option<f64> {
    let micro = |name: &str| number::<f64>(&battery.join(name)).map(|value| value.abs() / 1e6);
    let by_current = || Some(micro("current_now")? * micro("voltage_now")?);
    micro("power_now").or_else(by_current).filter(|watts| *watts > 0.0)
}

/// Returns whether a sensor is at its passive trip point (thermal zones of the kernel, millidegrees).
fn hot(root: &Path) -> Option<bool> {
    let mut known = None;
    for zone in folders(&root.join("sys/class/thermal")) {
        let Some(at) = number::<i64>(&zone.join("temp")) else { continue };
        for trip in 0.. {
            let Some(kind) = word(&zone.join(format!("trip_point_{trip}_type"))) else { break };
            let limit = number::<i64>(&zone.join(format!("trip_point_{trip}_temp")));
            let Some(limit) = limit.filter(|limit| *limit > 0) else { continue };
            if matches!(kind.as_str(), "passive" | "hot") {
                known = Some(known.unwrap_or(false) || at >= limit);
            }
        }
    }
    known
}

/// Returns whether tasks wait for memory (pressure stall information of the kernel).
fn memory_short(root: &Path) -> Option<bool> {
    let text = std::fs::read_to_string(root.join("proc/pressure/memory")).ok()?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let share = some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    share.parse::<f64>().ok().map(|percent| percent >= PRESSURE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_system_that_says_nothing_is_unknown() {
        let root = system(&[]);
        assert_eq!(Power::read(root.path()), Power::default());
        assert!(!Power::default().spares());
    }

    #[test]
    fn a_laptop_on_a_low_battery_is_spared() {
        let supply = "sys/class/power_supply";
        let battery = format!("{supply}/BAT0");
        let file = |name: &str| format!("{battery}/{name}");
        let mouse = format!("{supply}/hidpp_battery_0");
        let files = [
            (file("type"), "Battery\n"),
            (file("status"), "Discharging\n"),
            (file("capacity"), "18\n"),
            (file("power_now"), "15250000\n"),
            (format!("{mouse}/type"), "Battery\n"),
            (format!("{mouse}/scope"), "Device\n"),
            (format!("{mouse}/capacity"), "3\n"),
            (format!("{supply}/AC/type"), "Mains\n"),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let root = system(&files);
        let power = Power::read(root.path());
        assert_eq!(
            (power.on_battery, power.charge_percent, power.watts),
            (Some(true), Some(18), Some(15.25))
        );
        assert!(power.spares());
        std::fs::write(root.path().join(file("status")), "Charging\n").unwrap();
        let power = Power::read(root.path());
        assert_eq!((power.on_battery, power.watts), (Some(false), None));
        assert!(!power.spares());
    }

    #[test]
    fn power_is_found_from_current_and_voltage() {
        let root = system(&[
            ("sys/class/power_supply/battery/type", "Battery"),
            ("sys/class/power_supply/battery/status", "Discharging"),
            ("sys/class/power_supply/battery/capacity", "80"),
            ("sys/class/power_supply/battery/current_now", "-500000"),
            ("sys/class/power_supply/battery/voltage_now", "4000000"),
        ]);
        let power = Power::read(root.path());
        assert_eq!((power.watts, power.spares()), (Some(2.0), false));
    }

    #[test]
    fn a_sensor_at_its_trip_point_is_hot() {
        let zone = "sys/class/thermal/thermal_zone0";
        let root = system(&[
            (&format!("{zone}/temp"), "84000"),
            (&format!("{zone}/trip_point_0_type"), "active"),
            (&format!("{zone}/trip_point_0_temp"), "50000"),
            (&format!("{zone}/trip_point_1_type"), "passive"),
            (&format!("{zone}/trip_point_1_temp"), "85000"),
            ("sys/class/thermal/cooling_device0/type", "Fan"),
        ]);
        assert_eq!(Power::read(root.path()).hot, Some(false));
        std::fs::write(root.path().join(zone).join("temp"), "85000").unwrap();
        assert!(Power::read(root.path()).spares());
    }

    #[test]
    fn memory_pressure_is_read() {
        let line = |percent: &str| {
            format!(
                "some avg10={percent} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0 avg300=0 total=0\n"
            )
        };
        for (percent, short) in [("0.00", false), ("9.99", false), ("10.00", true)] {
            let root = system(&[("proc/pressure/memory", &line(percent))]);
            assert_eq!(Power::read(root.path()).memory_short, Some(short), "{percent}");
        }
    }
}
