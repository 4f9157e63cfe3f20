//! Stores profiles between runs, by device, model and build, and measures again if the device has drifted.
//!
//! Free memory changes by the minute and is always read anew. Two of the other figures are checked before a
//! stored profile is used: the products on which a token spends most, and reading the disk sequentially. If
//! one of them differs by more than a quarter, everything is measured again. A stored profile that cannot
//! be read counts as missing. So does one of a GPU that could not be measured.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::UNIX_EPOCH;

use baton_engine::gguf::Gguf;
use baton_gpu::Facts;
use serde::{Deserialize, Serialize};

use super::{
    Profile, ProfileError, ProfileOptions, cached_rate, pool_of, profile, refresh_memory, this_memory,
};
use crate::machine::disk;
use crate::machine::gpu::buffer_bytes;
use crate::settings::{Settings, SettingsError};

/// A figure that differs by more than this share has drifted.
const DRIFT: f64 = 0.25;

/// What a profile was measured on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct MeasuredOn {
    /// The program's version and build.
    build: String,
    /// The processor, as the system names it.
    processor: String,
    threads: usize,
    /// Place, name and memory of the GPU; empty if there is none.
    gpu: String,
    model: String,
    model_bytes: u64,
    /// When the model's file was last changed, in seconds since 1970.
    model_changed: u64,
}

/// A profile on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KeptProfile {
    made: MeasuredOn,
    profile: Profile,
}

/// Where a profile comes from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// From an earlier run; nothing has drifted.
    Kept,
    /// Measured, because there was none for this device, model and build.
    New,
    /// Measured, because it was asked for.
    Asked,
    /// Measured, because a figure was no longer right.
    Drifted {
        /// The figure.
        figure: String,
        /// The stored value.
        then: f64,
        /// The value now.
        now: f64,
    },
    /// Measured, because a figure could not be measured before.
    Missing {
        /// What could not be measured.
        what: String,
        /// Why.
        problem: String,
    },
}

/// Returns the stored profile of this device for this model, or measures a new one and stores it. If
/// `again` is set, it always measures. `said` is told what is being measured, and why nothing could be
/// stored.
///
/// # Errors
/// The errors of [`profile`].
pub fn kept_or_measured(
    options: &ProfileOptions,
    settings: &Settings,
    again: bool,
    said: &mut dyn FnMut(&str),
) -> Result<(Profile, Origin), ProfileError> {
    let made = MeasuredOn::of(options);
    let file = made.file();
    let kept = settings.profile::<KeptProfile>(&file).filter(|kept| kept.made == made && !again);
    let origin = match kept {
        Some(kept) => {
            let mut profile = kept.profile;
            said("whether kept figures still hold");
            match drift(&profile, options)? {
                None => {
                    profile.device.name.clone_from(&options.name);
                    profile.memory = this_memory()?.1;
                    refresh_memory(&mut profile.device)?;
                    refresh_gpu(&mut profile, options);
                    return Ok((profile, Origin::Kept));
                }
                Some(drifted) => drifted,
            }
        }
        None if again => Origin::Asked,
        None => Origin::New,
    };
    let profile = profile(options, said)?;
    let kept = KeptProfile { made, profile };
    if let Err(SettingsError::Write { path, err }) = settings.remember_profile(&file, &kept) {
        said(&format!("nothing is kept: write `{}`: {err}", path.display()));
    }
    Ok((kept.profile, origin))
}

/// Compares the device with its stored profile for a model; returns what is no longer right, in words.
///
/// # Errors
/// The errors of [`profile`].
pub fn kept_drift(options: &ProfileOptions, settings: &Settings) -> Result<Option<String>, ProfileError> {
    let Some(kept) = KeptProfiles::of(&options.model, settings).0.into_iter().next() else { return Ok(None) };
    Ok(drift(&kept.profile, options)?.map(|origin| match origin {
        Origin::Drifted { figure, then, now } => {
            format!("{figure}: {:.2} times as fast as when it was measured", now / then)
        }
        Origin::Missing { what, problem } => format!("{what} could not be measured: {problem}"),
        Origin::Kept | Origin::New | Origin::Asked => "it should be measured again".to_owned(),
    }))
}

/// What earlier runs have measured for a model's file, with whatever number of threads and GPU.
#[derive(Debug)]
pub struct KeptProfiles(Vec<KeptProfile>);

impl KeptProfiles {
    /// Reads the profiles that this build has stored for the model as it is now. Nothing is measured.
    pub fn of(model: &Path, settings: &Settings) -> Self {
        let options = ProfileOptions {
            model: model.to_owned(),
            threads: NonZeroUsize::MIN,
            name: String::new(),
            gpu: None,
        };
        let now = MeasuredOn::of(&options);
        let all = settings.profiles::<KeptProfile>(&now.file_prefix());
        Self(all.into_iter().filter(|kept| kept.made.is_alike(&now)).collect())
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the size of reads that was found best for the model's disk, or `None` if it is not known.
    pub fn read_bytes(&self) -> Option<usize> {
        self.0.iter().find_map(|kept| kept.profile.read_bytes())
    }

    /// Returns the profile in which this GPU was measured, or one without a GPU.
    pub fn with_gpu(&self, gpu: &Facts) -> Option<&Profile> {
        let label = baton_gpu::label(gpu);
        let found = self.0.iter().find(|kept| kept.made.gpu == label && kept.profile.gpu.is_some());
        found.or(self.0.first()).map(|kept| &kept.profile)
    }
}

/// Sets the memory of the GPU to what is free now.
fn refresh_gpu(profile: &mut Profile, options: &ProfileOptions) {
    if let (Some(gpu), Some(device)) = (&mut profile.gpu, &options.gpu) {
        gpu.free_bytes = device.free_bytes();
        profile.device.gpu = gpu.described(buffer_bytes(profile.model.hidden, profile.model.vocab));
    }
}

/// Returns a figure that is missing or no longer right, if there is one.
fn drift(profile: &Profile, options: &ProfileOptions) -> Result<Option<Origin>, ProfileError> {
    if let Some((gpu, problem)) = profile.gpu.as_ref().and_then(|gpu| Some((gpu, gpu.problem.clone()?))) {
        return Ok(Some(Origin::Missing { what: format!("the GPU {}", gpu.name), problem }));
    }
    let heaviest = profile.model.layer_flops.iter().max_by(|a, b| a.1.total_cmp(b.1));
    if let Some((format, _)) = heaviest {
        let (gguf, pool) = (Gguf::open(&options.model)?, pool_of(options)?);
        let then = profile.device.cpu.flops.get(format).copied().unwrap_or(f64::NAN);
        let found = drifted(&format!("products in {format}"), then, cached_rate(&gguf, format, &pool)?);
        if found.is_some() {
            return Ok(found);
        }
    }
    let block = profile.read_bytes().unwrap_or_else(disk::usual_block);
    let now = disk::look(&options.model, block)?;
    Ok(drifted("disk, in order", profile.device.disk.sequential_bytes_per_s, now))
}

fn drifted(figure: &str, then: f64, now: f64) -> Option<Origin> {
    let holds = (now / then - 1.0).abs() <= DRIFT;
    (!holds).then(|| Origin::Drifted { figure: figure.to_owned(), then, now })
}

impl MeasuredOn {
    fn of(options: &ProfileOptions) -> Self {
        let about = std::fs::metadata(&options.model).ok();
        let changed = about.as_ref().and_then(|about| about.modified().ok());
        let changed = changed.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let model = options.model.canonicalize().unwrap_or_else(|_| options.model.clone());
        Self {
            build: build(),
            processor: processor(Path::new("/")),
            threads: options.threads.get(),
            gpu: options.gpu.as_deref().map_or_else(String::new, |gpu| baton_gpu::label(gpu.facts())),
            model: model.to_string_lossy().into_owned(),
            model_bytes: about.map_or(0, |about| about.len()),
            model_changed: changed.map_or(0, |since| since.as_secs()),
        }
    }

    /// Whether both were measured with one build, on one processor, for one file as it was at one time.
    fn is_alike(&self, other: &Self) -> bool {
        let Self { build, processor, threads: _, gpu: _, model, model_bytes, model_changed } = self;
        (build, processor, model) == (&other.build, &other.processor, &other.model)
            && (*model_bytes, *model_changed) == (other.model_bytes, other.model_changed)
    }

    /// Returns how the names of all files of a model begin.
    fn file_prefix(&self) -> String {
        format!("{:08x}-", crc32fast::hash(self.model.as_bytes()))
    }

    /// Returns the file name, one for each model, number of threads and GPU; if anything else differs, the
    /// stored profile is replaced.
    fn file(&self) -> String {
        let (prefix, gpu) = (self.file_prefix(), crc32fast::hash(self.gpu.as_bytes()));
        if self.gpu.is_empty() {
            return format!("{prefix}{}.json", self.threads);
        }
        format!("{prefix}{}-{gpu:08x}.json", self.threads)
    }
}

/// Returns version, architecture and the time of the program's file. Measurements are kept for one build,
/// because kernels differ from build to build.
pub fn build() -> String {
    let program = std::env::current_exe().and_then(std::fs::metadata).and_then(|about| about.modified());
    let made =
        program.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs());
    format!("{} {} {made}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// Returns the processor's name, read below `root`; empty if the system does not report it.
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
    use std::sync::Arc;

    use baton_gpu::{BlockRate, Device as _, GpuError};
    use baton_kernels_gpu::cases::HostDevice;

    fn options(name: &str) -> ProfileOptions {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-device.gguf");
        ProfileOptions { model, threads: NonZeroUsize::MIN, name: name.to_owned(), gpu: None }
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
        let file = MeasuredOn::of(&options("one")).file();
        let mut kept: KeptProfile = settings.profile(&file).unwrap();
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
    fn a_gpu_that_could_not_be_measured_is_measured_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(folder.path().to_owned()));
        let get = |device: HostDevice| {
            let options = ProfileOptions { gpu: Some(Arc::new(device)), ..options("one") };
            kept_or_measured(&options, &settings, false, &mut |_| {}).unwrap()
        };
        let lost = HostDevice::new(None);
        lost.fail(GpuError::Lost("unplugged".to_owned()));
        let (first, origin) = get(lost);
        let problem = first.gpu.unwrap().problem.unwrap();
        assert_eq!((origin, problem.contains("unplugged")), (Origin::New, true), "{problem}");
        let (again, origin) = get(HostDevice::new(None));
        assert_eq!(origin, Origin::Missing { what: "the GPU host memory".to_owned(), problem });
        let gpu = again.gpu.unwrap();
        assert!(gpu.problem.is_none() && gpu.rates.is_some(), "{gpu:?}");
    }

    #[test]
    fn what_was_measured_for_a_file_is_found_again_until_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::open(Some(folder.path().to_owned()));
        let model = folder.path().join("model.gguf");
        std::fs::copy(options("one").model, &model).unwrap();
        let found = || KeptProfiles::of(&model, &settings);
        let gpu = HostDevice::new(None);
        assert!(found().read_bytes().is_none() && found().with_gpu(gpu.facts()).is_none());
        let threads = NonZeroUsize::new(3).unwrap();
        let measure = ProfileOptions { model: model.clone(), threads, ..options("one") };
        let (profile, _) = kept_or_measured(&measure, &settings, false, &mut |_| {}).unwrap();
        assert_eq!(found().read_bytes(), None, "a small file");
        let made = MeasuredOn::of(&measure);
        let read_blocks = vec![BlockRate { block_bytes: 123, bytes_per_s: 1.0 }];
        let kept = KeptProfile { made, profile: Profile { read_blocks, ..profile } };
        settings.remember_profile(&kept.made.file(), &kept).unwrap();
        assert_eq!(found().read_bytes(), Some(123), "with another number of threads");
        let gpu_of = |found: KeptProfiles| -> Option<Option<String>> {
            let profile = found.with_gpu(gpu.facts())?;
            Some(profile.gpu.as_ref().map(|gpu| gpu.name.clone()))
        };
        assert_eq!(gpu_of(found()), Some(None), "without the GPU");
        let with_gpu = ProfileOptions { gpu: Some(Arc::new(HostDevice::new(None))), ..measure };
        let (profile, _) = kept_or_measured(&with_gpu, &settings, false, &mut |_| {}).unwrap();
        assert_eq!(gpu_of(found()), Some(profile.gpu.map(|gpu| gpu.name)));
        std::fs::write(&model, "changed").unwrap();
        assert!(found().read_bytes().is_none());
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
