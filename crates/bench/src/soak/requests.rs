//! Requests: short connections, one after the other, each with an answer that is checked.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use weft_lab::Namespace;
use weft_lab::content::Content;
use weft_lab::pace::Pace;

use super::STALL;
use crate::site::GATEWAY;
use crate::worker::Worker;

const PER_SECOND: u32 = 20;
const ANSWER: usize = 32 * 1024;
/// How often the server looks whether it should end.
const TICK: Duration = Duration::from_millis(100);

/// What the requests of an interval took.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Milliseconds from the connect to the last byte.
    pub(super) millis: Vec<f64>,
    pub(super) failures: Vec<String>,
}

/// Running requests. They end when this is dropped.
pub(super) struct Requests {
    answers: Arc<Mutex<Answers>>,
    _workers: [Worker<()>; 2],
}

impl Requests {
    /// Starts a server at the gateway, and its client.
    pub(super) fn start(client: &Namespace, gateway: &Namespace) -> Result<Self> {
        let listener = gateway.run(|| TcpListener::bind((GATEWAY, 0)))?;
        // A receive timeout bounds accept(2) too (socket(7)).
        socket2::SockRef::from(&listener).set_read_timeout(Some(TICK))?;
        let address = listener.local_addr()?;
        let answers = Arc::<Mutex<Answers>>::default();
        let (told, client) = (Arc::clone(&answers), client.clone());
        let ask = move |stop: &AtomicBool| match client.enter() {
            Ok(()) => ask(address, &told, stop),
            Err(error) => lock(&told).failures.push(format!("no requests: {error}")),
        };
        let serve = move |stop: &AtomicBool| {
            while !stop.load(Relaxed) {
                if let Ok((stream, _)) = listener.accept() {
                    // Its client notices what fails.
                    let _ = answer(stream);
                }
            }
        };
        let _workers = [Worker::start("requests", ask)?, Worker::start("answers", serve)?];
        Ok(Self { answers, _workers })
    }

    /// Returns the answers since the last call.
    pub(super) fn take(&self) -> Answers {
        std::mem::take(&mut *lock(&self.answers))
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask(address: SocketAddr, answers: &Mutex<Answers>, stop: &AtomicBool) {
    let mut pace = Pace::new(PER_SECOND, Instant::now());
    for number in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        let start = Instant::now();
        let answer = request(address, number);
        let mut answers = lock(answers);
        match answer {
            Ok(()) => answers.millis.push(start.elapsed().as_secs_f64() * 1000.0),
            Err(error) => answers.failures.push(format!("request {number}: {error}")),
        }
        drop(answers);
        pace.spent(1);
        pace.wait();
    }
}

fn request(address: SocketAddr, number: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, STALL)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.write_all(&number.to_be_bytes())?;
    let mut answer = Vec::with_capacity(ANSWER);
    stream.read_to_end(&mut answer)?;
    match Content::new(number).first_mismatch(0, &answer) {
        None if answer.len() == ANSWER => Ok(()),
        mismatch => Err(io::Error::other(format!("{} bytes, wrong at {mismatch:?}", answer.len()))),
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    stream.write_all(&Content::new(u64::from_be_bytes(number)).at(0)[..ANSWER])
}
