//! What `./x help` and `./x COMMAND --help` print.

/// Every command in a line.
pub(crate) const COMMANDS: &str = "\
Baton: ask about a long document; the cloud writes the first tokens, the device finishes the answer.

  ./x setup                  install or name what this machine lacks
  ./x demo [OPTIONS]         one question three ways: device alone, cloud alone, relay   (./x demo --help)
  ./x demo ring              a ring of three devices on this machine, memory-limited, answers over the relay
  ./x test                   every suite and lint
  ./x test slow              what ./x test leaves out: fuzz, arm64, targets, dist, real
  ./x test NAME [FILTER...]  the suite NAME, or of it the tests whose names contain FILTER (./x test --list)
  ./x test loaded [N]        every suite N times (default 10), with busy loops and 4 GiB of memory left; Linux
  ./x test fuzz              fuzz targets, the ring's frames and documents: fixed numbers of inputs from a fixed seed
  ./x test arm64             kernels and engine on emulated ARM CPUs
  ./x test targets [run]     type-checks the programs for macOS, Windows, Android and static Linux
  ./x k8s                    renders every Kubernetes overlay and checks it, offline
  ./x lint                   fmt, clippy, docs, tidy walls, licences
  ./x bench NAME [OPTIONS]   one claim, measured; last line is JSON                      (./x bench --help)
  ./x dist [OPTIONS]         archives of the agent with digests, installer and packages, as people get them

Each command explains itself: ./x test --help
";

/// The help of one command; `None` if there is no such command.
pub(crate) fn of(command: &str) -> Option<&'static str> {
    Some(match command {
        "setup" => SETUP,
        "demo" => DEMO,
        "test" => TEST,
        "k8s" => K8S,
        "lint" => LINT,
        "bench" => BENCH,
        "dist" => DIST,
        _ => return None,
    })
}

const SETUP: &str = "\
./x setup: installs what the builds need and this machine lacks.

  a C compiler            SQLite; all that ./x demo needs beside Rust
  cmake, C++, libclang    HiGHS, the solver behind `baton ring plan --planner halda`

Packages are installed by apt-get (as root, or by sudo if that asks for no password) or by Homebrew. If that
is not possible, the command that installs them is printed, and the exit status is 1. The other commands do
the same for what they need themselves.
";

const DEMO: &str = "\
./x demo [OPTIONS]: builds the two programs without HiGHS and asks one question about a long document three
ways: the device alone, the cloud alone, and the relay.

  ./x demo               the comparison, on this machine
  ./x demo ring          a ring of three devices, none of which has memory for the whole model
  ./x demo --help        every option, from the demo itself (it is built first)
";

const TEST: &str = "\
./x test [NAME [FILTER...]]: builds and runs tests.

  ./x test                         lint and every suite
  ./x test slow                    what ./x test leaves out because it takes long: fuzz, arm64, targets, dist,
                                   real, and all of agents, clients, documents, gpu, hostile, ring, upstream
  ./x test --list                  the names of all suites; builds nothing
  ./x test tidy                    one suite; only what it needs is built
  ./x test kernels                 every suite of the packages in the folder kernels/
  ./x test cloud/                  the same; the slash means the folder if a suite has that name too
  ./x test processes cut_line      of a suite, the tests whose names contain `cut_line`, with all they print
  ./x test gpu                     GPU kernels and whole models; without a GPU, by Mesa's software Vulkan,
                                   which is fetched (Debian and Ubuntu), as NVIDIA's compilers are (x86-64
                                   Linux). Only if named, it also fetches real models (430 MB, by pip)
  ./x test agents record codex     runs an agent, at its locked version, and keeps in tests/agents what it sent
  ./x test ring --exact TEST       words after the suite's name go to its test program
  ./x test loaded 3                every suite 3 times, beside a busy loop for each core and with all memory
                                   but 4 GiB held (Linux)
  ./x test fuzz                    2,000,000 inputs for the ring's frames and 100,000 for the readers of
                                   documents, always from the same seeds (Linux)
  ./x test arm64                   every test of the kernels and the engine on emulated ARM CPUs (Linux)
  ./x test targets                 the programs for macOS, Windows, Android and static Linux: type-checked,
                                   without C code and HiGHS
  ./x test targets run             also builds and runs the static Linux programs, and the engine's unit tests
                                   for Windows if wine is installed (Linux)

The names of suites: unit tests go by their package's name, those of a program with `-bin` behind it, and
integration tests by their own name. A package that stands on few crates is built by itself. Others are built
with the features of the whole workspace, so that no dependency is built twice.

A line tells how many tests of a suite passed, failed and were skipped, and how long it took. What cannot be
tested here is named in a line `skipped: SUITE: REASON`. If a suite fails, all that it printed is shown.
Ctrl-C ends what is running.

Exit status: 0 if nothing failed, 1 if a test failed, 2 if no suite has that name, 101 if something does not
build.

  PROPTEST_RNG_SEED   the seed of property tests; 1 if not set, the number of the run in ./x test loaded
  VK_DRIVER_FILES     Vulkan's drivers for ./x test gpu; nothing is fetched if this or VK_ICD_FILENAMES is set
  BATON_NVCC          nvcc for ./x test gpu; with BATON_NVRTC, NVRTC's library: nothing is fetched if one is set
  BATON_TEST_GPU      the device for whole models in ./x test gpu, as `baton --gpu` takes it, such as cuda:0;
                      if it does not open, tests fail. If not set, vulkan:0, or they are skipped
  CARGO_TARGET_DIR    where everything is built; `target` if not set
  CARGO_INCREMENTAL   0 saves gigabytes if a checkout is built only once
";

const K8S: &str = "\
./x k8s [FILTER...]: renders every Kubernetes overlay and checks types, rules and the program's own options,
offline. It is ./x test k8s.

On Linux it first installs kubernetes-validate and checkov (from PyPI, at the versions of
tests/k8s/requirements.txt) and promtool (out of Debian's package) into target/k8s-tools. A check whose tool
cannot be had is skipped, with a line that says so.
";

const LINT: &str = "\
./x lint: everything that a machine can check without running the programs. Stops at the first complaint.

  cargo fmt --check    formatting, of xtask/ too
  cargo clippy         warnings are errors; also with the fewer features that the demo builds
  cargo doc            with private items; broken links are errors
  tidy                 walls between packages, SQL, sizes, names, licences (./x test tidy)
  cargo deny           published advisories; skipped without it (cargo install --locked cargo-deny)
";

const BENCH: &str = "\
./x bench NAME [OPTIONS]: measures one claim of the project; the last line is JSON.

  ./x bench --help        the names, from the benches themselves (they are built first)
  ./x bench NAME --help   the options of one of them
  ./x bench engine        also fetches and builds llama.cpp, by python3
";

const DIST: &str = "\
./x dist [OPTIONS]: builds the agent with the profile dist, and packs it for people who have no Rust.

  --target TARGET    of Rust, may be given several times [default: this machine's, and the static programs for
                     Linux that can be built here]
  --out DIR          where everything is written [default: dist-archives in the target folder]
  --program FILE     packs a program that is built already, for the one --target (default: this machine's)
  --downloads URL    where the archives will be; Homebrew's formula is made only with it

For each target: baton-VERSION-TARGET.tar.gz with the program, manual pages, completions and service files, and
its list of parts (CycloneDX). Beside them SHA256SUMS, install.sh, a Debian package (dpkg-deb) and an image of
the static program (podman). What cannot be made here is named in a line `skipped:`.
Programs for macOS and Windows are packed on such a machine, or by --program.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_explains_itself() {
        let lines = COMMANDS.lines().filter_map(|line| line.strip_prefix("  ./x "));
        for command in lines.filter_map(|line| line.split(' ').next()) {
            let text = of(command).unwrap_or_else(|| panic!("no help of {command}"));
            assert!(text.starts_with(&format!("./x {command}")), "{text}");
        }
        assert!(of("unknown").is_none());
    }
}
