package process

import (
	"fmt"
	"os"
	"testing"

	"pando.run/pando"
)

func TestWritableGoesByOwnerGroupAndMode(t *testing.T) {
	dir := t.TempDir()
	uid, gid := os.Getuid(), os.Getgid()
	me, group, other := fmt.Sprint(uid), fmt.Sprintf("%d:%d", uid+1, gid), "4242:4242"
	for _, c := range []struct {
		mode os.FileMode
		user string
		want bool
	}{
		{0o755, "0:0", false}, {0o757, "0:0", true},
		{0o755, group, false}, {0o775, group, true}, {0o755, other, false},
		{0o757, other, true},
		{0o755, "", false}, {0o777, "", true}, {0o755, me, true}, {0o557, group, false},
	} {
		if err := os.Chmod(dir, c.mode); err != nil {
			t.Fatal(err)
		}
		spec := pando.Spec{WorkingDir: dir, User: c.user}
		if c.user == me {
			spec.UsernsMode = pando.UsernsHost // the tests run as root
		}
		got, err := Writable(spec)
		if err != nil || got != c.want {
			t.Errorf("%o by user %q: %t, %v; want %t", c.mode, c.user, got, err, c.want)
		}
	}
	if _, err := Writable(pando.Spec{WorkingDir: dir + "/none"}); err == nil {
		t.Error("a folder that is not there is writable")
	}
	if _, err := Writable(pando.Spec{WorkingDir: dir, User: "nobody-here"}); err == nil {
		t.Error("a user that is not there may write")
	}
}
