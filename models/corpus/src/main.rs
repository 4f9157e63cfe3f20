//! `baton-corpus`: writes generated documents as JSON lines, for the trainer and for readers.
//!
//! Each line is `{"seed", "text", "questions": [{"text", "answer", "kind", "gold": [[start, end], ...]}]}`.

use baton_corpus::{Question, QuestionKind, TRAINING_SEED_BIT, document, refined, stream};
use std::io::{self, Write};
use std::process::ExitCode;

const USAGE: &str =
    "usage: baton-corpus [--from SEED] [--count N] [--words LOW[-HIGH]] [--train] [--refine LOW-HIGH] \
[--focus any|long|short|two_hop]

  --from SEED      first seed (default 0); each document takes the next
  --count N        number of documents (default 1)
  --words RANGE    target length in words (default 300)
  --train          set the training bit in every seed
  --refine RANGE   drop sentences until about this many words are left; keep those that a question needs
  --focus KIND     the kind of the question whose sentences are kept (default any)";

/// What the command line asked for.
struct Options {
    from: u64,
    count: u64,
    words: (usize, usize),
    train: bool,
    refine: Option<(usize, usize)>,
    focus: Option<QuestionKind>,
}

fn parse_range(text: &str) -> Option<(usize, usize)> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (low.parse().ok()?, high.parse().ok()?);
    (low <= high && high <= 1_000_000).then_some((low, high))
}

fn parse(mut args: impl Iterator<Item = String>) -> Option<Options> {
    let mut options =
        Options { from: 0, count: 1, words: (300, 300), train: false, refine: None, focus: None };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--from" => options.from = args.next()?.parse().ok()?,
            "--count" => options.count = args.next()?.parse().ok()?,
            "--words" => options.words = parse_range(&args.next()?)?,
            "--train" => options.train = true,
            "--refine" => options.refine = Some(parse_range(&args.next()?)?),
            "--focus" => {
                options.focus = match args.next()?.as_str() {
                    "any" => None,
                    "long" => Some(QuestionKind::Long),
                    "short" => Some(QuestionKind::Short),
                    "two_hop" => Some(QuestionKind::TwoHop),
                    _ => return None,
                };
            }
            _ => return None,
        }
    }
    Some(options)
}

/// Quotes a text as a JSON string; the generator writes only printable ASCII and newlines.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn line(seed: u64, text: &str, questions: &[Question]) -> String {
    let questions: Vec<String> = questions
        .iter()
        .map(|q| {
            let gold: Vec<String> = q.gold.iter().map(|r| format!("[{},{}]", r.start, r.end)).collect();
            let (text, answer, kind) = (quoted(&q.text), quoted(&q.answer), q.kind.as_str());
            format!(r#"{{"text":{text},"answer":{answer},"kind":"{kind}","gold":[{}]}}"#, gold.join(","))
        })
        .collect();
    format!(r#"{{"seed":{seed},"text":{},"questions":[{}]}}"#, quoted(text), questions.join(","))
}

fn generate(options: &Options, out: &mut impl Write) -> io::Result<()> {
    for index in 0..options.count {
        let seed = options.from.wrapping_add(index) | if options.train { TRAINING_SEED_BIT } else { 0 };
        let mut rng = stream(!seed);
        let mut draw = |(low, high): (usize, usize)| low + rng.below(high - low + 1);
        let doc = document(seed, draw(options.words));
        match options.refine {
            None => writeln!(out, "{}", line(seed, &doc.text, &doc.questions))?,
            Some(range) => {
                let words = draw(range);
                let matches = |q: &Question| options.focus.is_none_or(|kind| q.kind == kind);
                let focus = doc.questions.iter().position(matches).unwrap_or(0);
                let short = refined(&doc, focus, words, seed);
                writeln!(out, "{}", line(seed, &short.text, &short.questions))?;
            }
        }
    }
    out.flush()
}

fn main() -> ExitCode {
    let Some(options) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match generate(&options, &mut io::BufWriter::new(io::stdout().lock())) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe.
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("write documents: {err}");
            ExitCode::FAILURE
        }
    }
}
