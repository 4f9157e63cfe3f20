//! What one hop of the ring costs on loopback: a frame of hidden states over an encrypted channel, beside the
//! same bytes over bare TCP. `cargo run --release -p baton-device --example ring_hop [BYTES]`

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use baton_ring::home::identity::{DeviceName, Identity};
use baton_ring::wire::channel::{Channel, Purpose};

const TIMEOUT: Duration = Duration::from_secs(10);
const TURNS: usize = 4000;
/// Of a 7B model in f32.
const BYTES: usize = 16 << 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let bytes = std::env::args().nth(1).map_or(Ok(BYTES), |text| text.parse())?;
    // In turn, so that both meet the same machine.
    for _ in 0..3 {
        let (bare, sealed) = (bare(bytes)?, sealed(bytes)?);
        println!("{bytes} bytes, a hop: bare TCP {}, channel {}", shown(&bare), shown(&sealed));
    }
    Ok(())
}

/// Half of the median and of the 99th percentile of round trips, in microseconds.
fn shown(turns: &[Duration]) -> String {
    let mut sorted = turns.to_vec();
    sorted.sort();
    let half = |at: usize| sorted[at].as_secs_f64() * 5e5;
    format!("{:.1} us (p99 {:.1})", half(sorted.len() / 2), half(sorted.len() * 99 / 100))
}

fn bare(bytes: usize) -> Result<Vec<Duration>, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let echo = std::thread::spawn(move || {
        let mut frame = vec![0; bytes];
        while far.read_exact(&mut frame).is_ok() && far.write_all(&frame).is_ok() {}
    });
    let mut frame = vec![1; bytes];
    let mut turn = || -> Result<Duration, Failure> {
        let begun = Instant::now();
        near.write_all(&frame)?;
        near.read_exact(&mut frame)?;
        Ok(begun.elapsed())
    };
    let turns = (0..TURNS).map(|_| turn()).collect();
    drop(near);
    echo.join().map_err(|_| "the echo panicked")?;
    turns
}

fn sealed(bytes: usize) -> Result<Vec<Duration>, Failure> {
    let (caller, called) =
        (Identity::generate(DeviceName::of_host())?, Identity::generate(DeviceName::of_host())?);
    let (caller_key, called_key) = (*caller.public(), *called.public());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> Result<(), Failure> {
        let (stream, _) = listener.accept()?;
        let (channel, _) = Channel::accept(stream, &called, &|key| *key == caller_key, TIMEOUT)?;
        let (mut sender, mut receiver) = channel.split();
        let mut frame = Vec::new();
        for _ in 0..TURNS {
            receiver.receive_into(&mut frame, TIMEOUT)?;
            sender.send(&frame, TIMEOUT)?;
        }
        Ok(())
    });
    let channel = Channel::connect(address, &caller, &called_key, Purpose::Ring, TIMEOUT)?;
    let (mut sender, mut receiver) = channel.split();
    let mut frame = vec![1; bytes];
    let mut turn = || -> Result<Duration, Failure> {
        let begun = Instant::now();
        sender.send(&frame, TIMEOUT)?;
        receiver.receive_into(&mut frame, TIMEOUT)?;
        Ok(begun.elapsed())
    };
    let turns = (0..TURNS).map(|_| turn()).collect();
    echo.join().map_err(|_| "the echo panicked")??;
    turns
}
