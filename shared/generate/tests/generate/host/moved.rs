//! Keys and values that leave one host and enter another: the answer is that of the evicted fork.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_engine::engine::KvFormat;
use baton_engine::pace_emulation::PassCost;
use baton_engine::sampling::SamplingParams;
use baton_engine::tokenizer::TokenId;
use baton_engine::{Engine, Kept, KvRows, Sampler, StepSeq, Wanted};
use baton_generate::answer::{Accepted, Answer, Keep};
use baton_generate::clock::Clock;
use baton_generate::host::{Host, HostOptions};
use baton_generate::job::{Export, JobEvent, Opened, Order, RowsTaker, Sink, Take};
use baton_generate::scheduler::{CloseReason, Closed, Goal};

use super::world::{Ask, Reader, Record, engine, model, options};

/// Tokens that the first host writes.
const FIRST: usize = 5;
const ANSWER: usize = 30;
const KV_TOKENS: usize = 1024;

fn ask() -> Ask {
    let prompt = (0..150u32).map(|at| (at * 37 + 11) % 200).collect();
    let sampling = SamplingParams { temperature: 0.8, seed: 3, ..SamplingParams::default() };
    Ask { prompt, sampling, max_tokens: ANSWER, adapted: false, owner: 0 }
}

/// The positions that are kept, of all but the last.
fn kept(prompt: usize) -> Vec<usize> {
    (0..prompt - 1).filter(|at| *at < 10 || at / 13 % 2 == 0 || *at > prompt - 20).collect()
}

/// Gathers rows, and says that nobody wants more than so many parts.
struct Gather {
    rows: Arc<Mutex<KvRows>>,
    layers: Vec<usize>,
    wanted: usize,
}

impl RowsTaker for Gather {
    fn wants(&self) -> bool {
        self.layers.len() > self.wanted
    }

    fn take(&mut self, rows: &[u8]) {
        self.rows.lock().unwrap().push(self.layers.remove(0), rows);
    }
}

/// A sink that exports, and hands on to nobody.
struct Exporting(Option<Export>, Arc<Mutex<Vec<TokenId>>>);

impl Sink for Exporting {
    fn opened(&mut self, _opened: Opened) {}

    fn event(&mut self, event: JobEvent) {
        if let JobEvent::Written(token) = event {
            self.1.lock().unwrap().push(token.id);
        }
    }

    fn flush(&mut self, _now: Duration) {}

    fn exports(&mut self) -> Option<Export> {
        self.0.take()
    }

    fn closed(self: Box<Self>, _closed: &Closed, _answer: Answer) {}
}

fn host() -> Host<Engine> {
    Host::new(engine(KV_TOKENS), options(KV_TOKENS, Clock::monotonic()))
}

fn run(host: &mut Host<Engine>, reader: Option<&Reader>) {
    // A turn without a pass may still have given rows away.
    let mut idle = 0;
    while idle < 3 {
        match host.turn() {
            Some(pass) => {
                host.commit(pass);
                idle = 0;
            }
            None => idle += 1,
        }
        if let Some(reader) = reader {
            reader.read();
        }
    }
}

/// Runs the first host; returns its tokens, and the rows that left it.
fn begun(ask: &Ask, wanted: usize) -> (Vec<TokenId>, KvRows, usize) {
    let mut host = host();
    let positions = kept(ask.prompt.len());
    let widths = host.engine().kv_widths().unwrap();
    let parts: Vec<(usize, Range<usize>)> =
        (0..widths.len()).flat_map(|layer| [(layer, 0..40), (layer, 40..positions.len())]).collect();
    let rows = Arc::new(Mutex::new(KvRows::new(KvFormat::F16, positions.len(), widths.len())));
    let layers: Vec<usize> = parts.iter().map(|(layer, _)| *layer).collect();
    let wanted = layers.len().saturating_sub(wanted);
    let taker = Box::new(Gather { rows: Arc::clone(&rows), layers, wanted });
    let export = Export { positions, format: KvFormat::F16, parts, taker };
    let tokens = Arc::<Mutex<Vec<TokenId>>>::default();
    let (mut job, _reader) =
        Ask { max_tokens: FIRST, ..ask.clone() }.job(host.handle().new_id(), Goal::Write, None);
    job.sink = Box::new(Exporting(Some(export), Arc::clone(&tokens)));
    let free = host.free_kv_tokens();
    host.handle().submit(job).unwrap();
    run(&mut host, None);
    let (tokens, rows) = (tokens.lock().unwrap().clone(), rows.lock().unwrap().clone());
    (tokens, rows, free - host.free_kv_tokens())
}

/// Returns what an engine writes behind these tokens, over the kept keys and values alone.
fn over_kept(ask: &Ask, accepted: &[TokenId]) -> Vec<TokenId> {
    let mut engine = engine(KV_TOKENS);
    let known = ask.prompt.len() - 1;
    let seq = engine.create();
    let step = StepSeq { seq, ids: &ask.prompt[..known], logits: Wanted::None, capture: None };
    engine.step(&[step], &mut ()).unwrap();
    let config = model().config();
    let heads = vec![kept(ask.prompt.len()); config.n_layers * config.n_kv_heads];
    let thin = engine.evict(seq, &Kept::new(&heads).unwrap()).unwrap();
    let sampler = Sampler::new(ask.sampling).unwrap();
    let (mut answer, mut ids) = (accepted.to_vec(), [&ask.prompt[known..], accepted].concat());
    while answer.len() < ANSWER {
        let step = StepSeq { seq: thin, ids: &ids, logits: Wanted::Last, capture: None };
        let logits = engine.step(&[step], &mut ()).unwrap().remove(0).logits;
        let id = sampler.sample(&logits, answer.len() as u64, &answer);
        if model().tokenizer().is_end(id) {
            break;
        }
        answer.push(id);
        ids = vec![id];
    }
    answer
}

/// Gives rows to a second host, which goes on behind the tokens. Returns its answer and what it has computed
/// of the prompt.
fn go_on(ask: &Ask, tokens: &[TokenId], rows: KvRows, prefilled: usize) -> (Vec<TokenId>, usize, usize) {
    let mut host = host();
    let handle = host.handle();
    let id = handle.new_id();
    let (job, reader) = ask.job(id, Goal::Hold { upto: prefilled }, None);
    handle.submit(job).unwrap();
    run(&mut host, Some(&reader));
    let before = reader.with(|record| record.computed_tokens);
    let (ids, rows) = (ask.prompt.clone(), Arc::new(rows));
    handle.order(id, Order::Take(Take { ids, rows, max_tokens: ANSWER, pass_tokens: 32 }));
    run(&mut host, Some(&reader));
    let goal = Goal::Hold { upto: ask.prompt.len() - 1 };
    let ready = reader.with(|record| record.held) == 2;
    if !ready {
        let ids = ask.prompt.clone();
        handle.order(id, Order::Prompt { ids, evidence: None, max_tokens: ANSWER, goal, pass_tokens: 32 });
        run(&mut host, Some(&reader));
    }
    handle.order(id, Order::Accept(Accepted::Ids(tokens.to_vec())));
    run(&mut host, Some(&reader));
    handle.order(id, Order::Decide { keep: Keep::All, index: tokens.len() });
    run(&mut host, Some(&reader));
    let (reason, answer, fault) = reader.with(|record| record.end.clone()).unwrap();
    assert!(fault.is_none() && matches!(reason, CloseReason::Cap | CloseReason::Stop), "{fault:?}");
    // The next question finds a host that works.
    let (job, next) = ask.job(handle.new_id(), Goal::Write, None);
    handle.submit(job).unwrap();
    run(&mut host, Some(&next));
    assert_eq!(next.with(|record| record.end.clone()).unwrap().1, ask.alone(&[]).0);
    let computed = reader.with(|record| record.computed_tokens) - before;
    (answer, computed, host.free_kv_tokens())
}

#[test]
fn an_answer_over_moved_keys_and_values_is_that_of_the_evicted_fork() {
    let ask = ask();
    let (tokens, rows, held) = begun(&ask, usize::MAX);
    assert_eq!((tokens.len(), held), (FIRST, 0), "what has left holds nothing");
    assert_eq!(tokens, ask.alone(&[]).0[..FIRST]);
    for prefilled in [0, 20, 64, 149] {
        let (answer, computed, _) = go_on(&ask, &tokens, rows.clone(), prefilled);
        assert_eq!(answer, over_kept(&ask, &tokens), "{prefilled} prefilled");
        // The last token of the prompt goes through with the first host's.
        assert_eq!(computed, 1 + FIRST, "{prefilled} prefilled");
    }
    assert_ne!(over_kept(&ask, &tokens), ask.alone(&[]).0, "the test tells both apart");
}

#[test]
fn rows_that_come_end_the_pass_that_runs() {
    let ask = ask();
    let (_, rows, _) = begun(&ask, usize::MAX);
    // A pass would take days.
    let emulation = Some(PassCost { base_ms: 0.0, prefill_ms_per_token: 1e8, decode_ms: 0.0 });
    let options = HostOptions { emulation, ..options(KV_TOKENS, Clock::monotonic()) };
    let host = Host::new(engine(KV_TOKENS), options);
    let handle = host.handle();
    let id = handle.new_id();
    let (job, reader) = ask.job(id, Goal::Hold { upto: ask.prompt.len() - 1 }, None);
    handle.submit(job).unwrap();
    let serving = std::thread::spawn(|| host.serve());
    let until = |wanted: &dyn Fn(&Record) -> bool| {
        let there = (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            reader.with(wanted)
        });
        assert!(there, "the pass was waited for");
    };
    until(&|record| record.begun == 1);
    let (ids, rows) = (ask.prompt.clone(), Arc::new(rows));
    reader.cancel.replace();
    handle.order(id, Order::Take(Take { ids, rows, max_tokens: ANSWER, pass_tokens: 32 }));
    until(&|record| record.held == 1);
    handle.stop();
    serving.join().unwrap();
}

#[test]
fn an_export_that_nobody_wants_ends_and_holds_nothing() {
    let (_, rows, held) = begun(&ask(), 1);
    assert_eq!((rows.layer(0).len(), held), (40 * 2 * 2 * 32, 0), "one part of forty tokens");
}

#[test]
fn a_job_goes_on_with_its_own_prompt_if_the_rows_do_not_fit() {
    let ask = ask();
    let (tokens, rows, _) = begun(&ask, usize::MAX);
    let mut faulty = KvRows::new(KvFormat::F16, rows.tokens(), 1);
    let mut bytes = rows.layer(0).to_vec();
    bytes[100..102].copy_from_slice(&0x7c00u16.to_le_bytes());
    faulty.push(0, &bytes);
    let mut short = KvRows::new(KvFormat::F16, rows.tokens(), 1);
    short.push(0, &bytes[..bytes.len() - 1]);
    for rows in [faulty, short] {
        let (answer, computed, _) = go_on(&ask, &tokens, rows, 64);
        assert_eq!(answer, ask.alone(&tokens).0);
        assert_eq!(computed, ask.prompt.len() - 64 + FIRST);
    }
}
