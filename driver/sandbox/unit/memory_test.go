package unit

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// header returns the constants that bpf/group.h defines. A test of function/unit compares them
// with the units' constants.
func header(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("../../../bpf/group.h")
	if err != nil {
		t.Fatal(err)
	}
	defined := map[string]int{}
	define := regexp.MustCompile(`(?m)^#define (\w+) (\d+)`)
	for _, m := range define.FindAllStringSubmatch(string(text), -1) {
		if defined[m[1]], err = strconv.Atoi(m[2]); err != nil {
			t.Fatal(err)
		}
	}
	return defined
}

func opened(t *testing.T) *Memory {
	t.Helper()
	m, err := newMemory("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return m
}

func TestTheLayoutIsThatOfTheHeader(t *testing.T) {
	defined := header(t)
	for name, ours := range map[string]int{
		"GROUP_UNITS": pando.UnitsMax, "GROUP_WORDS": memoryBytes / 8, "GROUP_PAGE_WORDS": pageWords,
		"GROUP_ALIVE": aliveWord, "GROUP_RINGS": pagesBytes / 8,
		"GROUP_REPORT_NOW": reportNow, "GROUP_REPORT_FINISH": reportEnd,
		"GROUP_REPORT_WAITING": reportWaits,
		"GROUP_REPORT_WORKED":  reportWord + reportWords - 1,
	} {
		if value, ok := defined[name]; !ok || value != ours {
			t.Errorf("%s is %d here, bpf/group.h defines %d (%v)", name, ours, value, ok)
		}
	}
	stat := unix.Stat_t{}
	if err := unix.Fstat(int(opened(t).file.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	if words := int64(defined["GROUP_WORDS"]); stat.Size != 8*words {
		t.Errorf("the memory has %d bytes, want %d words", stat.Size, words)
	}
}

// The words are written as a unit writes them, by the header alone.
func TestTheGroupReadsTheReportsOfItsUnits(t *testing.T) {
	m, defined := opened(t), header(t)
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	const id = pando.LogUnit
	page := defined["GROUP_PAGE_WORDS"] * (1 + id)
	for name, value := range map[string]int64{
		"NOW": now.Nano() - int64(time.Second), "FINISH": now.Nano() + int64(time.Hour), "WAITING": 7,
		"PACKETS": 1, "BYTES": 2, "LEFT": 1, "WORKED": int64(time.Minute),
	} {
		atomic.StoreUint64(m.word(0, page+defined["GROUP_REPORT_"+name]), uint64(value))
	}
	const units = 1<<id | 1<<(id-1)
	loads, err := m.Loads(units)
	if err != nil {
		t.Fatal(err)
	}
	l := loads[id]
	if l.Waiting != 7 || l.Worked != time.Minute || l.Age < time.Second || l.Age > time.Minute ||
		l.Backlog > time.Hour || l.Backlog < 59*time.Minute {
		t.Errorf("the load is %+v", l)
	}
	if silent := loads[id-1]; silent.Waiting != 0 || silent.Age < time.Duration(now.Nano()) {
		t.Errorf("a unit without a report has the load %+v", silent)
	}
	if loads[0] != (pando.UnitLoad{}) {
		t.Errorf("a unit outside the set has the load %+v", loads[0])
	}
	m.Clear(id)
	if pages := m.pages[8*page:]; slices.ContainsFunc(pages, func(b byte) bool { return b != 0 }) {
		t.Error("words of the report are left")
	}
	if loads, err = m.Loads(units); err != nil || loads[id].Age < time.Duration(now.Nano()) {
		t.Errorf("the load of an ended unit is %+v (%v)", loads[id], err)
	}
}

// rung reports whether the eventfd of a unit has been written since the last call.
func rung(t *testing.T, m *Memory, id int) bool {
	t.Helper()
	var count [8]byte
	_, err := unix.Read(int(m.bells[id].Fd()), count[:])
	if err != nil && err != unix.EAGAIN {
		t.Fatal(err)
	}
	return err == nil
}

func TestTheEndOfAUnitWakesTheOthers(t *testing.T) {
	m := opened(t)
	m.SetAlive(0b111)
	if rung(t, m, 0) || rung(t, m, 1) || rung(t, m, 2) {
		t.Error("new units wake the others")
	}
	m.SetAlive(0b101)
	if !rung(t, m, 0) || rung(t, m, 1) || !rung(t, m, 2) {
		t.Error("the end of unit 1 must wake the units 0 and 2")
	}
	if alive := *m.word(0, header(t)["GROUP_ALIVE"]); alive != 0b101 {
		t.Errorf("the live units are %b", alive)
	}
}
