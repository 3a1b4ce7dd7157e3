package house

import (
	"encoding/csv"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write the counts that fell to ratchet.csv")

const (
	sentenceWordsMax = 40
	columnsMax       = 100
	ratchetFile      = "ratchet.csv"
)

// pattern is a habit that makes prose hard to read. CONTRIBUTING.md explains each with an example.
type pattern struct {
	name string
	find *regexp.Regexp
}

// patterns are put together so that this file does not find itself.
var patterns = []pattern{
	{"what", regexp.MustCompile(`(?i)\bwh` + `at(?:ever)?\b`)},
	{"who", regexp.MustCompile(`(?i)\bwh` + `o(?:ever|se)?\b`)},
	{"talking code", regexp.MustCompile(
		`\b(?:sa` + `ys?|sa` + `id|te` + `lls?|to` + `ld|he` + `ars?|he` + `ard|kn` + `ows?|kn` +
			`ew)\b`)},
	{"negative", regexp.MustCompile(
		`(?i)\b(?:that|which|what|who) (?:is|are|was|were) no` + `ne\b|\bno` + `body\b|\bno` +
			`where\b`)},
	{"adverb", regexp.MustCompile(`, to` + `o\b|\ball the sa` + `me\b|, eit` + `her\b|\bbesi` +
		`des\b|\bin va` + `in\b`)},
	{"going on",
		regexp.MustCompile(`\bgo(?:es)? o` + `n\b|\bstands? st` + `ill\b|\bwithout a wo` + `rd\b`)},
}

const (
	longSentence = "long sentence"
	wideLine     = "wide line"
)

// tally counts, per room of the tree, how often each habit occurs.
type tally map[string]map[string]int

func (c tally) add(room, name string, n int) {
	if n == 0 {
		return
	}
	if c[room] == nil {
		c[room] = map[string]int{}
	}
	c[room][name] += n
}

// isWide reports whether a line is too wide. A command to `go generate` cannot be wrapped.
func isWide(line string) bool {
	return utf8.RuneCountInString(line) > columnsMax && !strings.HasPrefix(line, "//go:generate ")
}

// count reads the tree and returns its tally and the number of words of prose per room.
func count(all []text) (found tally, words map[string]int) {
	found, words = tally{}, map[string]int{}
	for _, x := range all {
		for _, line := range x.lines {
			if isWide(line) {
				found.add(x.room(), wideLine, 1)
			}
		}
		remarks := x.remarks()
		for _, r := range remarks {
			words[x.room()] += len(strings.Fields(r.text))
			for _, p := range patterns {
				found.add(x.room(), p.name, len(p.find.FindAllString(r.text, -1)))
			}
		}
		found.add(x.room(), longSentence, len(longSentences(remarks)))
	}
	return found, words
}

// sentenceEnd is the end of a sentence, of a line in a literal, of a cell of a table, or of a part
// of a measure in bench/README.md.
var sentenceEnd = regexp.MustCompile(`[.!?:](?: |$)|\\n| \| | · `)

// longSentences returns the sentences of more than sentenceWordsMax words, each with the line of
// its end. A sentence may run over adjacent lines, but not into the next item of a list. The row of
// a table is not a sentence.
func longSentences(remarks []remark) (long []remark) {
	sentence, last := "", -1
	flush := func() {
		if len(strings.Fields(sentence)) > sentenceWordsMax {
			long = append(long, remark{line: last, text: strings.TrimSpace(sentence)})
		}
		sentence = ""
	}
	for _, r := range remarks {
		if r.line > last+1 || r.beside || r.text == "" || strings.HasPrefix(r.text, "|") ||
			strings.HasPrefix(r.text, "- ") {
			flush()
		}
		last = r.line
		if strings.HasPrefix(r.text, "|") {
			continue
		}
		parts := sentenceEnd.Split(r.text, -1)
		for i, part := range parts {
			sentence += " " + part
			if i < len(parts)-1 {
				flush()
			}
		}
		if r.ends {
			flush()
		}
	}
	flush()
	return long
}

// TestProseOnlyGetsBetter compares today's counts with ratchet.csv. A count may fall and never
// grows. After a clean-up, `go test ./test/house -update` writes the lower counts.
func TestProseOnlyGetsBetter(t *testing.T) {
	found, words := count(texts(t))
	allowed, err := readRatchet()
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range slices.Sorted(maps.Keys(found)) {
		for _, name := range slices.Sorted(maps.Keys(found[room])) {
			if n, most := found[room][name], allowed[room][name]; n > most {
				t.Errorf("%s: %d times %q, at most %d: CONTRIBUTING.md has the style note; %s shows the lines",
					room, n, name, most, "`go test ./test/house -run TestShowProse -v -args ROOM`")
			}
		}
	}
	report(t, found, words)
	if *update {
		if err := writeRatchet(lower(found, allowed)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShowProse lists the lines of one room, given as the last argument, that the ratchet counts.
func TestShowProse(t *testing.T) {
	if flag.NArg() == 0 {
		return
	}
	for _, x := range texts(t) {
		if x.room() != flag.Arg(0) {
			continue
		}
		for i, line := range x.lines {
			if isWide(line) {
				t.Logf("%s:%d: %s", x.path, i+1, wideLine)
			}
		}
		remarks := x.remarks()
		for _, r := range remarks {
			for _, p := range patterns {
				if p.find.MatchString(r.text) {
					t.Logf("%s:%d: %s: %s", x.path, r.line, p.name, r.text)
				}
			}
		}
		for _, s := range longSentences(remarks) {
			t.Logf("%s:%d: %s: %s", x.path, s.line, longSentence, s.text)
		}
	}
}

// report logs the house's measures: each habit per 1,000 words of prose.
func report(t *testing.T, found tally, words map[string]int) {
	total := 0
	for _, n := range words {
		total += n
	}
	var rows []string
	for _, p := range patterns {
		n := 0
		for room := range found {
			n += found[room][p.name]
		}
		rows = append(rows, fmt.Sprintf("%s %.1f", p.name, 1000*float64(n)/float64(total)))
	}
	sums := map[string]int{}
	for room := range found {
		sums[longSentence] += found[room][longSentence]
		sums[wideLine] += found[room][wideLine]
	}
	t.Logf("per 1,000 of %d words: %s; sentences over %d words: %d; lines over %d columns: %d", total,
		strings.Join(rows, ", "), sentenceWordsMax, sums[longSentence], columnsMax, sums[wideLine])
}

// lower returns, for each habit of each room, the lower count of the two tallies. A habit that one
// of them lacks is absent.
func lower(found, allowed tally) tally {
	least := tally{}
	for room, habits := range found {
		for name, n := range habits {
			least.add(room, name, min(n, allowed[room][name]))
		}
	}
	return least
}

func readRatchet() (tally, error) {
	f, err := os.Open(ratchetFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ratchetFile, err)
	}
	allowed := tally{}
	for _, row := range rows[1:] {
		n, err := strconv.Atoi(row[2])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", ratchetFile, err)
		}
		allowed.add(row[0], row[1], n)
	}
	return allowed, nil
}

func writeRatchet(found tally) error {
	f, err := os.Create(ratchetFile)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	rows := [][]string{{"room", "habit", "count"}}
	for _, room := range slices.Sorted(maps.Keys(found)) {
		for _, name := range slices.Sorted(maps.Keys(found[room])) {
			rows = append(rows, []string{room, name, strconv.Itoa(found[room][name])})
		}
	}
	if err := w.WriteAll(rows); err != nil {
		return err
	}
	return f.Close()
}

func TestTheRatchetNeverRises(t *testing.T) {
	allowed := tally{"a": {"fell": 5, "rose": 1, "gone": 2}, "left": {"fell": 1}}
	found := tally{"a": {"fell": 3, "rose": 2, "new": 1}, "b": {"new": 4}}
	want := tally{"a": {"fell": 3, "rose": 1}}
	if got := lower(found, allowed); !reflect.DeepEqual(got, want) {
		t.Errorf("the lower counts are %v, want %v", got, want)
	}
}

func TestHabitsAreFound(t *testing.T) {
	long := strings.Repeat("word ", sentenceWordsMax)
	for _, c := range []struct {
		line, name string
		times      int
	}{
		{"// names that are no" + "ne are refused", "negative", 1},
		{"// wh" + "at is recent goes first", "what", 1},
		{"// the record sa" + "ys so", "talking code", 1},
		{"// a plain sentence about a record", "what", 0},
		{"x := 1 // " + long + "end.", longSentence, 1},
		{"x := 1 // " + long[:50] + ". " + long[:100], longSentence, 0},
		{"x := \"" + long + "end\"", longSentence, 1},
		{"//\t" + long + "end.", longSentence, 0},
		{strings.Repeat("x", columnsMax+1), wideLine, 1},
	} {
		found, _ := count([]text{{"room/file.go", "go", []string{c.line}}})
		if got := found["room"][c.name]; got != c.times {
			t.Errorf("%q: %d times %q, want %d", c.line, got, c.name, c.times)
		}
	}
}
