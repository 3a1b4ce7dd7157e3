package unit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A unit's reports stay in the group's log after the unit leaves. lastWords finds the last lines
// and the account in it.
func TestTheLogOfAGroupHasTheLastWordsOfItsUnits(t *testing.T) {
	d := &Driver{Config: Config{Name: "ids", RunDir: t.TempDir()}}
	if err := os.Mkdir(filepath.Dir(d.logFile()), 0o755); err != nil {
		t.Fatal(err)
	}
	before := "a line of another unit\n"
	log := before + strings.Join([]string{
		`{"time_ns":1,"function":"ids","flow":"a","event":7}`, "thread main panicked",
		`{"name":"ids.1","functions":[{"function":"ids","packets":9}]}`,
		`{"name":"ids.2","functions":[{"function":"ids","packets":4}],"lost":3,"fates":[["sent",4]]}`,
		`{"name":"ids.2","functions":5}`, "bye", "",
	}, "\n")
	if err := os.WriteFile(d.logFile(), []byte(log), 0o644); err != nil {
		t.Fatal(err)
	}
	lines, account := (&process{driver: d, id: 2, logged: int64(len(before))}).lastWords()
	if want := []string{"thread main panicked", "bye"}; !slices.Equal(lines, want) {
		t.Errorf("the last lines are %q, want %q", lines, want)
	}
	if account == nil || account.Functions[0].Packets != 4 || account.Lost != 3 {
		t.Fatalf("the account is %+v, want that of ids.2", account)
	}
	lines, account = (&process{driver: d, id: 2, logged: int64(len(log))}).lastWords()
	if lines != nil || account != nil {
		t.Errorf("a unit without output has lines %q and account %+v", lines, account)
	}
}
