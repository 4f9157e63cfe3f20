#!/usr/bin/env python3
"""Records the scores of LongBench's own program on cases made here. Only our own texts and numbers are stored.

    git clone https://github.com/THUDM/LongBench && git -C LongBench checkout 2e00731f8d0bff23dc4325161044d0ed8af94c1e
    python3 -m venv venv && venv/bin/pip install rouge==1.0.1 jieba==0.42.1 fuzzywuzzy==0.18.0
    venv/bin/python benches/longbench/data/record.py LongBench/LongBench

Writes cases.json and words.json into its own folder, with the same bytes every time. python-Levenshtein must not be
installed: it is not in LongBench's requirements, and with it fuzzywuzzy computes another ratio.
"""

import json
import os
import random
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))

ENGLISH = """The ferry to Aldmoor leaves at seven, and a second one follows at noon.
An engineer measured the bridge twice; the beam was an inch too short.
Who repaired the clock? Nobody knew, but the answer was written in a ledger.
Prices rose by 3.5% in March, while wages (before tax) stayed at $1,200.50.
The a-b test of the theory: an apple, a pear, and the other thing.
Dr. Hale's team found 42 samples. They kept 7. The rest were lost...
It isn't the end; it's a beginning -- or so the sign says!
Rain fell on the valley for nine days, and the mill by the river stood still.
Version 2.0.1 of the tool fixes U.S. dates, e.g. 1999-12-31, and file_names_with_underscores.
In the north wing there is a library whose catalogue lists 30,112 books.
The mayor thanked the volunteers. The volunteers thanked the mayor.
Tea is grown on the slopes; coffee is grown in the valley; neither is sold.
A and an and the. The an a.
Cafe\u0301 na\u00efve \u0130stanbul \u03a3\u0391\u03a3 stra\u00dfe \u01c5 \u2167 caf\u00e9 A\u0301n a\u0301 \u00aa the\u0301.""".split("\n")

CHINESE = """这座桥建于一九三六年，长约三百米。
他在图书馆工作了二十年，从来没有迟到过！
请问：去火车站怎么走？一直往前，然后左转。
根据调查，约有百分之六十五点三的居民支持这个方案。
李小福是创新办主任，也是云计算方面的专家；他来到了网易杭研大厦。
张雯婷和欧阳慕容昨天去了哈利波特主题公园。
我们中出了一个叛徒“老陈”，他说：『没有的事』……
乒乓球拍卖完了，研究生命起源的学者还没回来。
B超检查需要多长时间？T恤和iPhone 15 Pro都在3楼，价格是￥8999.00元。
工信处女干事每月经过下属科室都要亲口交代24口交换机等技术性器件的安装工作。
北京大学生前来应聘，结果发现南京市长江大桥正在维修。
龘靐齉爩𠮷野家㐂㐱鿕鿖鿿々〇。
他用C++和c#写了一个AT&T的1.0.3-beta_2版本，速度提升了50%。
小明硕士毕业于中国科学院计算所，后在日本京都大学深造。
全角ＡＢＣ１２３，半角abc123；混合ｱｲｳ한국어テスト。
段落3和段落12说的是同一件事，答案是段落7。""".split("\n")

CODE = """def add(a, b):
    return a + b
for (int i = 0; i < n; ++i) { sum += values[i]; }
# a comment that is skipped
// another comment
```python
let total: u64 = items.iter().map(|item| item.price).sum();
self.cache[key] = value
public static void main(String[] args) throws IOException {
    logger.info("started in {} ms", watch.elapsed());
url = "https://example.org/path"
x = [1, 2, 3]  # trailing
return None
}""".split("\n")

CLASSES_EN = ["Number of something", "Date", "City", "State", "Other location", "Individual", "Group or organization of person",
              "Description of something", "Description of a person", "Person", "Price", "Expression abbreviated", "Other number",
              "Number", "City", "location"]
CLASSES_ZH = ["农业、农村", "军事", "文学、艺术", "体育", "传媒业", "电子信息产业", "文化、休闲娱乐", "社会、劳动", "经济", "教育", "环境、气象",
              "艺术", "劳动", "农业"]
EDGES = ["", " ", "\n", "...", ". . .", "。", "！？", "the", "A", "an the a", "42", "\t\r\n", "\r\n\r\n", "\u3000", "\x1c\x1d", "._-",
         "`", "Paragraph", "段落", "a.b.c", "same same same same", "\u200b", "\ufeff", "\u00a0x\u00a0", "1" * 40, "٣٤", "９"]


def text(pieces):
    """Returns the text of `[piece, count]` pairs."""
    return "".join(piece * count for piece, count in pieces)


def plain(pieces):
    """Returns the text itself if no piece is repeated, else the pairs."""
    return pieces if any(count > 1 for _, count in pieces) else text(pieces)


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def sentence(self, pool):
        line = self.random.choice(pool)
        if self.random.random() < 0.4:
            words = line.split(" ") if " " in line else list(line)
            start = self.random.randrange(len(words))
            glue = " " if " " in line else ""
            line = glue.join(words[start:start + self.random.randrange(1, 12)])
        return line

    def passage(self, pools, most):
        glue = self.random.choice(["", " ", "\n", "  ", "\n\n"])
        return glue.join(self.sentence(self.random.choice(pools)) for _ in range(self.random.randrange(1, most)))

    def odd(self):
        """Returns random characters of many scripts, which form no known words."""
        blocks = [(0x4E00, 0x9FFF), (0x4E00, 0x5500), (0x3400, 0x3500), (0x20, 0x7F), (0x3000, 0x3030), (0xFF00, 0xFF60), (0x2000, 0x2030)]
        letters = []
        for _ in range(self.random.randrange(1, 30)):
            low, high = self.random.choice(blocks[:2] if self.random.random() < 0.7 else blocks)
            letters.append(chr(self.random.randrange(low, high)))
        return "".join(letters)

    def changed(self, line):
        """Returns the text with words or characters removed, doubled, swapped or in upper case."""
        cjk = any("\u4e00" <= letter <= "\u9fff" for letter in line)
        parts = list(line) if cjk or " " not in line else line.split(" ")
        out = []
        for part in parts:
            what = self.random.random()
            if what < 0.15:
                continue
            out.append(part.upper() if what < 0.25 else part)
            if what > 0.92:
                out.append(part)
        if self.random.random() < 0.2 and len(out) > 3:
            at = self.random.randrange(len(out) - 1)
            out[at], out[at + 1] = out[at + 1], out[at]
        return ("" if cjk or " " not in line else " ").join(out)


def pairs(draw, pools, count, most=6):
    """Returns predictions with ground truths: edge cases, changed texts, longer texts, unrelated texts, odd characters."""
    made = [(edge, edge) for edge in EDGES]
    made += [(edge, draw.passage(pools, 3)) for edge in EDGES[:12]] + [(draw.passage(pools, 3), edge) for edge in EDGES[:12]]
    while len(made) < count:
        truth = draw.passage(pools, most)
        kind = draw.random.random()
        if kind < 0.55:
            made.append((draw.changed(truth), truth))
        elif kind < 0.75:
            made.append((truth + " " + draw.passage(pools, most), truth))
        elif kind < 0.9:
            made.append((draw.passage(pools, most), truth))
        else:
            made.append((draw.changed(draw.odd() + truth), truth + draw.odd()))
    return [([[p, 1]], [[g, 1]]) for p, g in made]


def long_pairs(draw, pools):
    """Returns repeated lines and very long texts; some are just below or above Python's recursion limit in ROUGE-L."""
    line, other = draw.sentence(pools[0]), draw.sentence(pools[-1])
    made = [([[line + "\n", 200]], [[line, 1]]), ([[line, 1]], [[line + " ", 300]]), ([[line + " " + other + ". ", 60]], [[other + ". ", 80]])]
    # One repeated word, so that the path through the table has a known length.
    for words in [480, 490, 494, 495, 496, 497, 498, 500, 980, 985, 986, 987, 988, 989, 990, 991, 992, 995, 1000]:
        made.append(([["w ", words]], [["w ", words]]))
    for words in [975, 980, 984, 985, 986, 987, 988, 989, 990, 991, 992, 993, 994, 995, 1010]:
        # Only the sentences `x x ...` and `y` recurse deeply; if the limit is not reached, `q` gives a score.
        made.append(([["q.", 1], ["x ", words]], [["q. y", 1]]))
        made.append(([["q. x", 1]], [["q.", 1], ["y ", words]]))
        made.append(([["q.", 1], ["x ", words]], [["q.", 1], ["y ", words]]))
    made += [([["你", 985]], [["好", 3]]), ([["你好吗 ", 400]], [["你好 ", 500]]), ([["a b c ", 3000]], [["c b a. ", 10]])]
    return made


def numbered(draw, word, digits):
    truth = f"{word}{draw.random.randrange(1, digits)}"
    bits = [truth, str(draw.random.randrange(1, digits)), word, " and ", "，", "paragraph 7", "12.5", "007", "-", "The answer is ", "\n", "٧"]
    prediction = "".join(draw.random.choice(bits) for _ in range(draw.random.randrange(0, 6)))
    return prediction, truth


def cases():
    """Yields every case as (metric, prediction, ground truth, classes)."""
    draw = Draw(20240)
    for p, g in pairs(draw, [ENGLISH], 120) + pairs(draw, [ENGLISH, CHINESE, CODE], 70) + long_pairs(draw, [ENGLISH])[:3]:
        yield "qa_f1_score", p, g, []
    for p, g in pairs(draw, [CHINESE], 130) + pairs(draw, [CHINESE, ENGLISH], 90) + long_pairs(draw, [CHINESE])[:3]:
        yield "qa_f1_zh_score", p, g, []
    for p, g in pairs(draw, [ENGLISH], 120) + pairs(draw, [ENGLISH, CODE], 70) + long_pairs(draw, [ENGLISH]):
        yield "rouge_score", p, g, []
    for p, g in pairs(draw, [CHINESE], 130) + pairs(draw, [CHINESE, ENGLISH], 90) + long_pairs(draw, [CHINESE, ENGLISH]):
        yield "rouge_zh_score", p, g, []
    for classes, glue in [(CLASSES_EN, " "), (CLASSES_ZH, "，")]:
        for _ in range(60):
            truth = draw.random.choice(classes + classes + [""])
            named = draw.random.sample(classes, draw.random.randrange(0, 5)) + [truth] * draw.random.randrange(0, 2)
            prediction = glue.join(named) + draw.random.choice(["", ".", "\n", " type"])
            yield "classification_score", [[prediction, 1]], [[truth, 1]], classes
    for metric, word in [("retrieval_score", "Paragraph "), ("retrieval_zh_score", "段落")]:
        for _ in range(70):
            prediction, truth = numbered(draw, word, 31)
            yield metric, [[prediction, 1]], [[truth, 1]], []
        yield metric, [[word + "5 ", 4000]], [[word + "5 and " + word + "6", 1]], []
    for _ in range(70):
        prediction, truth = numbered(draw, "", 40)
        yield "count_score", [[prediction, 1]], [[truth, 1]], []
    yield "count_score", [["7 8 ", 2500]], [["7", 1]], []
    code = pairs(draw, [CODE], 110, 4) + pairs(draw, [CODE, CHINESE], 60, 4)
    for p, g in code:
        yield "code_sim_score", p, g, []
    for n in [99, 100, 199, 200, 201, 300]:  # difflib ignores frequent characters from length 200 on
        body = "".join(draw.random.choice("abcdefgh    ()=;") for _ in range(n))
        yield "code_sim_score", [[draw.changed(body), 1]], [[body, 1]], []
        yield "code_sim_score", [[body, 1]], [[draw.changed(body) + "zq" * 3, 1]], []
        yield "code_sim_score", [["ab", n]], [["ba", n]], []


def score(metric, prediction, truth, classes):
    """Has the same call depth as eval.py's `scorer`, because ROUGE-L depends on Python's recursion limit."""
    return metric(prediction, truth, all_classes=classes)


def write(name, value):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as file:
        rows = value.pop("rows")
        head = json.dumps(value, ensure_ascii=True)[:-1]
        file.write(head + ', "rows": [\n' + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]}\n")


if len(sys.argv) != 2:
    sys.exit(__doc__)
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")  # fuzzywuzzy warns that it uses difflib
try:
    import Levenshtein
    sys.exit("python-Levenshtein is installed: fuzzywuzzy would compute another ratio than LongBench's requirements give")
except ImportError:
    import jieba
    import metrics

sys.setrecursionlimit(1000)
made_with = {"python": ".".join(map(str, sys.version_info[:3])), "longbench": "2e00731f8d0bff23dc4325161044d0ed8af94c1e",
             "rouge": "1.0.1", "jieba": "0.42.1", "fuzzywuzzy": "0.18.0"}
recorded = []
for metric_name, p, g, all_classes in cases():
    value = score(getattr(metrics, metric_name), text(p), text(g), all_classes)
    row = [metric_name, plain(p), plain(g), float(value)]
    if all_classes:
        row.append(0 if all_classes is CLASSES_EN else 1)
    recorded.append(row)
write("cases.json", {"made_with": made_with, "classes": [CLASSES_EN, CLASSES_ZH], "rows": recorded})

draw_words = Draw(7)
texts = EDGES + CHINESE + ENGLISH
texts += [draw_words.odd() for _ in range(150)]
texts += [draw_words.changed(draw_words.passage([CHINESE, CHINESE, ENGLISH], 4)) for _ in range(150)]
write("words.json", {"made_with": made_with, "total": jieba.dt.total,
                     "rows": [list(jieba.cut(one, cut_all=False)) for one in texts]})
