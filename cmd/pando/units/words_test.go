package units

import (
	"os"
	"path/filepath"
	"testing"
)

// A unit's reports stay in the group's log after the unit leaves. lastWords finds the last lines
// and the account in it.
func TestTheLogOfAGroupHasTheLastWordsOfItsUnits(t *testing.T) {
	g := &Group{Config: Config{Name: "ids", RunDir: t.TempDir()}}
	if err := os.Mkdir(filepath.Dir(g.log()), 0o755); err != nil {
		t.Fatal(err)
	}
	before := "what another said before\n"
	text := before + `{"time_ns":1,"function":"ids","flow":"a","event":7}` + "\nthread main panicked\n" +
		`{"name":"ids.1","functions":[{"function":"ids","packets":9}]}` + "\n" +
		`{"name":"ids.2","functions":[{"function":"ids","packets":4}],"lost":3,"unsent":2,"fates":[["sent",4]]}` + "\nbye\n"
	if err := os.WriteFile(g.log(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	words, account := g.lastWords(&process{name: "ids.2", logged: int64(len(before))})
	if want := ": the last words\n  thread main panicked\n  bye"; words != want {
		t.Errorf("the last words are %q, want %q", words, want)
	}
	if account == nil || account.Functions[0].Packets != 4 {
		t.Fatalf("the account is %+v, want that of ids.2", account)
	}
	var whole status
	whole.account(account)
	whole.account(account)
	if f := whole.Functions[0]; f.Packets != 8 || whole.Lost != 6 || whole.Unsent != 4 || whole.Fates[0][1] != 8.0 {
		t.Errorf("two such units make %+v", whole)
	}
	if words, account = g.lastWords(&process{name: "ids.2", logged: int64(len(text))}); words != "" || account != nil {
		t.Errorf("who said nothing said %q, %+v", words, account)
	}
}
