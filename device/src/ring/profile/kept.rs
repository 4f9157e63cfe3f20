//! Profiles that are kept between runs, by device, model and build, and measured again when the device drifts.
//!
//! What changes by the minute (memory) is always asked anew. Of the rest two figures are looked at again before a kept
//! profile is used: the products that a token spends most on, and reading the disk in order. Where one of them is off by
//! more than a quarter, everything is measured. A kept profile that cannot be read counts as none.

use std::path::Path;
use std::time::UNIX_EPOCH;

use baton_engine::gguf::Gguf;
use serde::{Deserialize, Serialize};

use super::{
    Profile, ProfileError, ProfileOptions, cached_rate, pool_of, profile, refresh_memory, this_memory,
};
use crate::ring::disk;
use crate::settings::{Settings, SettingsError};

/// A figure that is off by more than this has drifted.
const DRIFT: f64 = 0.25;

/// What a profile was measured on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Made {
    /// The program's version and build.
    build: String,
    /// The processor, as the system calls it.
    processor: String,
    threads: usize,
    model: String,
    model_bytes: u64,
    /// Seconds since 1970 when the model's file was changed last.
    model_changed: u64,
}

/// A profile on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Kept {
    made: Made,
    profile: Profile,
}

/// Where a profile comes from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// From an earlier run; nothing has drifted.
    Kept,
    /// Measured: there was none for this device, model and build.
    New,
    /// Measured: it was asked for.
    Asked,
    /// Measured: a figure was no longer right.
    Drifted {
        /// Which.
        figure: String,
        /// What was kept.
        then: f64,
        /// What it is now.
        now: f64,
    },
}

/// The kept profile of this device for this model, or a new one, which is kept. `again`: measure in any case. `said` hears what
/// is being measured, and why nothing could be kept.
///
/// # Errors
/// As [`profile`].
pub fn kept_or_measured(
    options: &ProfileOptions,
    settings: &Settings,
    again: bool,
    said: &mut dyn FnMut(&str),
) -> Result<(Profile, Origin), ProfileError> {
    let made = Made::of(options);
    let file = made.file();
    let kept = settings.profile::<Kept>(&file).filter(|kept| kept.made == made && !again);
    let origin = match kept {
        Some(kept) => {
            let mut profile = kept.profile;
            said("whether kept figures still hold");
            match drift(&profile, options)? {
                None => {
                    profile.device.name.clone_from(&options.name);
                    profile.memory = this_memory()?.1;
                    refresh_memory(&mut profile.device)?;
                    return Ok((profile, Origin::Kept));
                }
                Some(drifted) => drifted,
            }
        }
        None if again => Origin::Asked,
        None => Origin::New,
    };
    let profile = profile(options, said)?;
    let kept = Kept { made, profile };
    if let Err(SettingsError::Write { path, err }) = settings.remember_profile(&file, &kept) {
        said(&format!("nothing is kept: write `{}`: {err}", path.display()));
    }
    Ok((kept.profile, origin))
}

/// The figure that is no longer right, if any.
fn drift(profile: &Profile, options: &ProfileOptions) -> Result<Option<Origin>, ProfileError> {
    let heaviest = profile.model.layer_flops.iter().max_by(|a, b| a.1.total_cmp(b.1));
    if let Some((format, _)) = heaviest {
        let (gguf, pool) = (Gguf::open(&options.model)?, pool_of(options)?);
        let then = profile.device.cpu.flops.get(format).copied().unwrap_or(f64::NAN);
        let found = drifted(&format!("products in {format}"), then, cached_rate(&gguf, format, &pool)?);
        if found.is_some() {
            return Ok(found);
        }
    }
    let now = disk::look(&options.model)?;
    Ok(drifted("disk, in order", profile.device.disk.sequential_bytes_per_s, now))
}

fn drifted(figure: &str, then: f64, now: f64) -> Option<Origin> {
    let holds = (now / then - 1.0).abs() <= DRIFT;
    (!holds).then(|| Origin::Drifted { figure: figure.to_owned(), then, now })
}

impl Made {
    fn of(options: &ProfileOptions) -> Self {
        let about = std::fs::metadata(&options.model).ok();
        let changed = about.as_ref().and_then(|about| about.modified().ok());
        let changed = changed.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let model = options.model.canonicalize().unwrap_or_else(|_| options.model.clone());
        Self {
            build: build(),
            processor: processor(Path::new("/")),
            threads: options.threads.get(),
            model: model.to_string_lossy().into_owned(),
            model_bytes: about.map_or(0, |about| about.len()),
            model_changed: changed.map_or(0, |since| since.as_secs()),
        }
    }

    /// A file name of its own for each model and number of threads; what else differs replaces what is kept.
    fn file(&self) -> String {
        let crc = crc32fast::hash(self.model.as_bytes());
        format!("{crc:08x}-{}.json", self.threads)
    }
}

/// Version, architecture, and when the program's file was made: kernels differ from build to build.
fn build() -> String {
    let program = std::env::current_exe().and_then(std::fs::metadata).and_then(|about| about.modified());
    let made =
        program.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs());
    format!("{} {} {made}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// The processor's name below `root`; empty where the system does not tell.
fn processor(root: &Path) -> String {
    let text = std::fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let named = |line: &str| {
        let (field, value) = line.split_once(':')?;
        ["model name", "Hardware", "CPU part"].contains(&field.trim()).then(|| value.trim().to_owned())
    };
    text.lines().find_map(named).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn options(name: &str) -> ProfileOptions {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-device.gguf");
        ProfileOptions { model, threads: NonZeroUsize::MIN, name: name.to_owned() }
    }

    #[test]
    fn a_profile_is_kept_measured_again_when_asked_and_when_it_has_drifted() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(folder.path().to_owned()));
        let get =
            |name: &str, again| kept_or_measured(&options(name), &settings, again, &mut |_| {}).unwrap();
        let (first, origin) = get("one", false);
        assert_eq!(origin, Origin::New);
        assert_eq!(get("one", true).1, Origin::Asked);
        let file = Made::of(&options("one")).file();
        let mut kept: Kept = settings.profile(&file).unwrap();
        let heaviest =
            kept.profile.model.layer_flops.iter().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0.clone();
        *kept.profile.device.cpu.flops.get_mut(&heaviest).unwrap() = 1.0;
        settings.remember_profile(&file, &kept).unwrap();
        let (again, origin) = get("two", false);
        assert!(matches!(origin, Origin::Drifted { then, .. } if then == 1.0), "{origin:?}");
        assert_eq!((again.device.name.as_str(), &again.model), ("two", &first.model));
        kept.made.build.push('x');
        settings.remember_profile(&file, &kept).unwrap();
        assert_eq!(get("one", false).1, Origin::New, "of another build");
        std::fs::write(folder.path().join("profiles").join(&file), "{").unwrap();
        assert_eq!(get("one", false).1, Origin::New, "broken");
    }

    #[test]
    fn a_quarter_is_where_drift_begins() {
        assert_eq!(drifted("x", 100.0, 76.0), None);
        assert_eq!(drifted("x", 100.0, 124.0), None);
        for now in [74.0, 126.0, f64::NAN] {
            assert!(matches!(drifted("x", 100.0, now), Some(Origin::Drifted { .. })), "{now}");
        }
    }

    #[test]
    fn a_processor_is_known_by_what_the_system_calls_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(processor(folder.path()), "");
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let text = "processor\t: 0\nmodel name\t: A CPU @ 3 GHz\nmodel name\t: B\n";
        std::fs::write(folder.path().join("proc/cpuinfo"), text).unwrap();
        assert_eq!(processor(folder.path()), "A CPU @ 3 GHz");
    }
}
