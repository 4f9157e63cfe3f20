//! Names of people, places and organisations in Chinese text.
//!
//! A name of a person is a surname and one or two characters. It is found if what stands before and behind it
//! fits: a title, a role, a verb of a person, a mark. Words of the dictionary that begin with a surname are
//! left alone.

use super::super::push;
use super::lists::{Lists, chinese as words, lists};
use super::pattern;
use crate::privacy::EntityKind;
use crate::privacy::detect::Found;
use std::sync::LazyLock;

/// Words of the file of Chinese lists.
type Cue = LazyLock<Vec<&'static str>>;

/// Titles after a surname or a name.
static TITLES: Cue = LazyLock::new(|| words("[titles]"));
/// Words before a person.
static BEFORE: Cue = LazyLock::new(|| words("[before]"));
/// Short words before a person. They are also parts of other words, so something must follow that fits.
static LINKS: Cue = LazyLock::new(|| words("[links]"));
/// Words after a person.
static AFTER: Cue = LazyLock::new(|| words("[after]"));
/// Labels before a colon whose value is a person, and headers of columns.
static LABELS: Cue = LazyLock::new(|| words("[labels]"));
/// Characters that no name has, and that often stand beside one.
const FUNCTION: &str = "的了是在不我有他这个们中来上大为和到说时要就以也会对能可而子那得着下自之过后作由里用去出只把被让给从向与及或但并很都已将我你她它吗呢吧啊请谁哪什么怎没还再又才问叫等所其此些每某各几多少第";
/// Single characters that are rarely surnames before a title.
const NOT_BEFORE_TITLE: &str =
    "和于时任应相那全能计信从成管都有来对位支关车安干公用束保家国大老小师主助副各本该总";
/// Cities, provinces and countries that are not private by themselves.
static PUBLIC: Cue = LazyLock::new(|| words("[public]"));

pattern!(
    STREET,
    concat!(
        r"\p{Han}{2,10}?(?:路|街|巷|大道|胡同|弄)[0-9]{1,5}号(?:院)?(?:[0-9]{1,3}(?:号楼|栋|幢|座|号院))?(?:[0-9]{1,2}单元)?(?:[0-9]{1,5}(?:室|号|房)?)?",
        r"|\p{Han}{2,8}?(?:小区|花园|家园|公寓|新村|苑|里)[0-9]{1,3}(?:号楼|栋|幢|座|号)(?:[0-9]{1,2}单元)?(?:[0-9]{1,5}(?:室|号|房)?)?",
    )
);
pattern!(
    FIRM,
    concat!(
        r"\p{Han}{2,16}?(?:股份有限公司|有限责任公司|有限公司|集团|商业银行|银行|大学|学院|人民医院|医院|小学|中学|律师事务所|会计师事务所|",
        r"事务所|基金会|研究院|研究所|协会|公司|幼儿园|出版社|工作室)",
    )
);
pattern!(
    TOWN,
    r"(?:住在|来自|老家在|家在|搬到了?|搬去|出生在|出生于|生于|位于|前往)(\p{Han}{2,3}?(?:自治县|市|县|镇|乡|村)|\p{Han}{2,3})"
);
pattern!(TOWN_KIND, r"(?:在|到|去|于|至|从|回)(\p{Han}{2,3}?(?:自治县|市|县|镇|乡|村))");
pattern!(TOWN_VERB, r"在(\p{Han}{2,4}?)(?:长大|举行|住了|生活|出生|上学|工作|召开|定居)");
pattern!(POST_TOWN, r"(?:^|[^0-9])[0-9]{6}\s?(\p{Han}{2,5})");
pattern!(TOWN_LABEL, "(?:城市|籍贯|户籍|居住地|出生地|所在地)[\"”]?\\s?[：:]\\s?[\"“]?(\\p{Han}{2,5})");
pattern!(FOREIGN, r"\p{Han}{1,6}(?:·\p{Han}{1,6}){1,3}");

/// Checks for a Chinese character.
pub(super) fn is_han(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}')
}

/// Finds names in Chinese text.
pub(super) fn find(text: &str, found: &mut Vec<Found>) {
    // Japanese has surnames of its own, and these rules would find words in it.
    if text.chars().any(|c| matches!(c, '\u{3041}'..='\u{30ff}')) {
        return;
    }
    let (text, traditional) = simplified(text);
    let text = text.as_str();
    places(text, found);
    firms(text, found);
    for m in FOREIGN.find_iter(text) {
        push(found, EntityKind::Person, m.range());
    }
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let people = People { text, chars: &chars, lists: lists(), traditional };
    let mut at = 0;
    while at < chars.len() {
        match people.at(at) {
            Some(len) => {
                push(found, EntityKind::Person, chars[at].0..people.byte(at + len));
                at += len;
            }
            None => at += 1,
        }
    }
}

/// Returns the text in simplified characters, and whether it was in traditional ones. Positions stay, because
/// both forms have the same length.
fn simplified(text: &str) -> (String, bool) {
    let forms = &lists().chinese_simplified;
    let mut changed = 0usize;
    let simple = |c: char| match forms.get(&c) {
        Some(form) if form.len_utf8() == c.len_utf8() => {
            changed += 1;
            *form
        }
        _ => c,
    };
    let text: String = text.chars().map(simple).collect();
    let traditional = changed * TRADITIONAL_SHARE > text.chars().filter(|c| is_han(*c)).count();
    (text, traditional)
}

/// One in this many characters must have been traditional, so that a text counts as traditional.
const TRADITIONAL_SHARE: usize = 20;

fn is_public(name: &str) -> bool {
    let plain = name.trim_end_matches('市');
    PUBLIC.iter().any(|public| *public == name || *public == plain)
}

/// Returns the byte at which the name in a match begins: behind the last word that leads to it.
fn begin(text: &str, start: usize, end: usize, kind_bytes: usize, leads: &[&str]) -> usize {
    let own = &text[start..end - kind_bytes];
    let cut = leads.iter().filter_map(|lead| own.rfind(lead).map(|at| at + lead.len()));
    // Two characters are the shortest name.
    start + cut.filter(|&at| own[at..].chars().count() >= 2).max().unwrap_or(0)
}

fn places(text: &str, found: &mut Vec<Found>) {
    const LEADS: &[&str] = &["在", "到", "是", "于", "往", "去", "从", "址", "住", "寄", "的", "至"];
    for m in STREET.find_iter(text) {
        let digit = m.as_str().find(|c: char| c.is_ascii_digit()).unwrap_or(0);
        push(found, EntityKind::Place, begin(text, m.start(), m.start() + digit, 3, LEADS)..m.end());
    }
    for town in [&*TOWN, &*TOWN_KIND, &*TOWN_VERB, &*POST_TOWN, &*TOWN_LABEL] {
        for groups in town.captures_iter(text) {
            let Some(name) = groups.get(1) else { continue };
            let rest = &text[name.end()..];
            let whole = rest.chars().next().is_none_or(|c| !is_han(c) || "的并和，工上住长很喜".contains(c))
                || name.as_str().ends_with(['市', '县', '镇', '乡', '村'])
                || std::ptr::eq(town, &*TOWN_VERB);
            let function = name.as_str().chars().any(|c| "这那哪我你他家里的了一".contains(c));
            let word = lists().chinese_frequent.contains(name.as_str());
            if whole && !function && !word && !is_public(name.as_str()) {
                push(found, EntityKind::Place, name.range());
            }
        }
    }
}

/// Words after which the name of an organisation begins.
static FIRM_LEADS: Cue = LazyLock::new(|| words("[firm_leads]"));
/// Words for what an organisation is, the longest first.
static FIRM_KINDS: Cue = LazyLock::new(|| words("[firm_kinds]"));
/// Words that make no name with a word for an organisation.
static FIRM_GENERIC: Cue = LazyLock::new(|| words("[firm_generic]"));

fn firms(text: &str, found: &mut Vec<Found>) {
    for m in FIRM.find_iter(text) {
        let kind = FIRM_KINDS.iter().find(|kind| m.as_str().ends_with(**kind)).map_or(0, |kind| kind.len());
        let start = begin(text, m.start(), m.end(), kind, &FIRM_LEADS);
        let name = &text[start..m.end() - kind];
        let plain = FIRM_GENERIC.contains(&name) || name.chars().count() < 2 || is_public(name);
        let function = name.chars().any(|c| "的了是不我你他她们这那哪".contains(c));
        if !plain && !function {
            push(found, EntityKind::Org, start..m.end());
        }
    }
}

/// The text in which people are looked for.
struct People<'a> {
    text: &'a str,
    chars: &'a [(usize, char)],
    lists: &'static Lists,
    /// Whether the text was in traditional characters; some of them are in no list.
    traditional: bool,
}

impl People<'_> {
    fn byte(&self, at: usize) -> usize {
        self.chars.get(at).map_or(self.text.len(), |(byte, _)| *byte)
    }

    fn slice(&self, from: usize, to: usize) -> &str {
        &self.text[self.byte(from)..self.byte(to)]
    }

    fn before(&self, at: usize) -> &str {
        &self.text[..self.byte(at)]
    }

    fn after(&self, at: usize) -> &str {
        &self.text[self.byte(at)..]
    }

    /// Returns the number of characters of the surname at `at`, if the list has it.
    fn surname(&self, at: usize) -> Option<usize> {
        (1..=2).rev().find(|&len| {
            at + len <= self.chars.len() && self.lists.chinese_surnames.contains(self.slice(at, at + len))
        })
    }

    /// Checks whether what stands before shows a person.
    fn shown_before(&self, at: usize) -> bool {
        let before = self.before(at);
        let bare = before.trim_end_matches(['"', '“', '*', ' ', '（', '(']);
        let label = bare.strip_suffix(['：', ':']).map(|head| head.trim_end_matches(['"', '”', ' ']));
        BEFORE.iter().any(|word| before.ends_with(word))
            || label.is_some_and(|head| {
                LABELS.iter().any(|label| head.ends_with(label)) || head.ends_with(['人', '员', '者', '师'])
            })
            || before.ends_with('@')
    }

    /// Checks whether a mark or the start of a line stands before.
    fn open_before(&self, at: usize) -> bool {
        self.before(at).chars().next_back().is_none_or(|c| !is_han(c) && !c.is_alphanumeric())
    }

    fn open_after(&self, at: usize) -> bool {
        self.after(at).chars().next().is_none_or(|c| !is_han(c) && !c.is_alphanumeric())
    }

    fn starts_with(&self, at: usize, list: &[&str]) -> bool {
        let after = self.after(at);
        list.iter().any(|word| after.starts_with(word))
    }

    fn ends_with(&self, at: usize, list: &[&str]) -> bool {
        let before = self.before(at);
        list.iter().any(|word| before.ends_with(word))
    }

    fn is_word(&self, from: usize, to: usize) -> bool {
        self.lists.chinese_words.contains(self.slice(from, to))
    }

    /// Checks whether a frequent word or a mark begins at `at`.
    fn word_after(&self, at: usize) -> bool {
        self.open_after(at)
            || self.starts_with(at, &AFTER)
            || at + 2 <= self.chars.len() && self.lists.chinese_frequent.contains(self.slice(at, at + 2))
    }

    /// Checks whether a frequent word or a mark ends at `at`.
    fn word_before(&self, at: usize) -> bool {
        self.open_before(at)
            || self.ends_with(at, &LINKS)
            || at >= 2 && self.lists.chinese_frequent.contains(self.slice(at - 2, at))
    }

    fn usable(&self, from: usize, to: usize) -> bool {
        to <= self.chars.len()
            && self.chars[from..to].iter().all(|(_, c)| is_han(*c) && !FUNCTION.contains(*c))
    }

    /// Returns the number of characters of a person's name at `at`, without a title.
    fn at(&self, at: usize) -> Option<usize> {
        if !is_han(self.chars[at].1) {
            return None;
        }
        let surname = self.surname(at);
        let names = surname.into_iter().flat_map(|len| [len + 2, len + 1]);
        let best =
            names.filter_map(|len| self.score(at, len, surname.unwrap_or(1)).map(|score| (score, len)));
        if let Some((_, len)) = best.max() {
            return Some(len);
        }
        self.titled(at, surname).or_else(|| self.unlisted(at))
    }

    /// Returns how well a name of this length fits, or `None` if it does not.
    fn score(&self, at: usize, len: usize, surname: usize) -> Option<u32> {
        let end = at + len;
        let count = at > 0 && "一二两三四五六七八九十几每这那0123456789".contains(self.chars[at - 1].1);
        if !self.usable(at, end)
            || count
            || self.starts_with(at + surname, &TITLES)
            || len == 3 && self.is_word(at, end)
        {
            return None;
        }
        let given = &self.chars[at + surname..end];
        // The last character may begin the next word.
        if given.len() == 2
            && self.is_rare(given[1].1)
            && end < self.chars.len()
            && self.is_word(end - 1, end + 1)
        {
            return None;
        }
        let listed = given.iter().all(|(_, c)| self.lists.chinese_given.contains(c));
        let shown = self.shown_before(at);
        let left = if shown { 2 } else { u32::from(self.word_before(at)) };
        let title = self.starts_with(end, &TITLES);
        let right = if title { 2 } else { u32::from(self.word_after(end)) };
        let two = u32::from(given.len() == 2);
        // Otherwise a name whose first characters are a word, as 王国强, would rarely be one.
        let certain = two == 1 && listed && left >= 1 && (self.open_after(end) || shown && right >= 1);
        if self.is_word(at, at + 2) && surname == 1 && !certain {
            return None;
        }
        let rare = given.iter().filter(|(_, c)| self.is_rare(*c)).count();
        let fits = if listed {
            left + right >= 2 && left.min(right) >= 1
                || two == 1 && left >= 1 && !self.is_frequent(at + surname, end)
        } else {
            let fine = given.iter().all(|(_, c)| self.is_rare(*c) || self.lists.chinese_given.contains(c));
            left >= 1 && (rare > 0 && fine || right >= 1 && (rare > 0 || surname == 2 || left + right >= 3))
        };
        fits.then_some(2 * (left + right) + two + 2 * u32::from(listed))
    }

    /// Checks for characters that are hardly found in words.
    fn rare(&self, chars: &[(usize, char)]) -> bool {
        chars.iter().any(|(_, c)| self.is_rare(*c))
    }

    fn is_rare(&self, c: char) -> bool {
        !self.traditional && !self.lists.chinese_common.contains(&c) && !self.lists.chinese_given.contains(&c)
    }

    fn is_frequent(&self, from: usize, to: usize) -> bool {
        self.lists.chinese_frequent.contains(self.slice(from, to))
    }

    /// Returns the length of a surname before a title, or after `小` and `老`.
    fn titled(&self, at: usize, surname: Option<usize>) -> Option<usize> {
        let open = self.open_before(at) || self.shown_before(at) || self.ends_with(at, &LINKS);
        if let Some(len) = surname {
            let plain = len == 1 && NOT_BEFORE_TITLE.contains(self.chars[at].1);
            if self.starts_with(at + len, &TITLES) && !plain && open {
                return Some(len);
            }
            let young = self.ends_with(at, &["小", "老"])
                && (at < 2 || !is_han(self.chars[at - 2].1) || self.ends_with(at - 1, &LINKS));
            let ends = self.word_after(at + len) || self.starts_with(at + len, &["都", "也", "跟"]);
            let young = young && (len == 2 || !self.is_word(at, (at + 2).min(self.chars.len())));
            return (young && ends && !plain).then_some(len);
        }
        let titles = || TITLES.iter().filter(|title| title.chars().count() == 2);
        let title = |len: &usize| {
            self.usable(at, at + len) && titles().any(|title| self.after(at + len).starts_with(title))
        };
        let young = self.ends_with(at, &["小", "老"]) && self.word_after(at + 1);
        (open || young)
            .then(|| (1..=2).find(|len| title(len) || young && *len == 1))
            .flatten()
            .filter(|&len| self.rare(&self.chars[at..at + len]))
    }

    /// Returns the length of a name whose surname no list has, or of a given name alone.
    fn unlisted(&self, at: usize) -> Option<usize> {
        let greeting = self.before(at).ends_with("亲爱的");
        let odd = self.is_rare(self.chars[at].1) && self.word_before(at);
        if !self.shown_before(at) && !odd || self.is_word(at, (at + 2).min(self.chars.len())) {
            return None;
        }
        let fits = |len: &usize| {
            let end = at + len;
            if !self.usable(at, end) {
                return false;
            }
            let own = &self.chars[at..end];
            let fine = own.iter().all(|(_, c)| self.is_rare(*c) || self.lists.chinese_given.contains(c));
            let stands = self.open_after(end) || self.starts_with(end, &TITLES);
            let verb = fine && self.starts_with(end, &AFTER);
            let all = own.len() == 3 && own.iter().all(|(_, c)| self.is_rare(*c));
            let before = self.open_before(at) || self.ends_with(at, &LINKS) || self.shown_before(at);
            (self.rare(own) || greeting && fine) && before && (stands || verb) || all
        };
        (1..=3).rev().find(fits).filter(|&len| len > 1 || greeting)
    }
}
