package netspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
)

// another makes a network namespace and returns its file.
func another(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	made, err := make(chan netns.NsHandle), error(nil)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in the new namespace
		var ns netns.NsHandle
		ns, err = netns.New()
		made <- ns
	}()
	ns := <-made
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", ns)
}

func TestAFunctionRunsInTheNamespaceAndTheCallerDoesNot(t *testing.T) {
	path := another(t)
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	there, failed := "", errors.New("of the function")
	err = At(path, func() (err error) {
		if there, err = os.Readlink("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		return failed
	})
	if !errors.Is(err, failed) || there == here || there == "" {
		t.Errorf("%v in %q, want the function's error in another namespace than %q", err, there, here)
	}
	if now, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || now != here {
		t.Errorf("afterwards the caller is in %q (%v), want %q", now, err, here)
	}
}

func TestANamespaceThatIsGoneIsAnError(t *testing.T) {
	err := At("/proc/self/fd/1000000", func() error {
		t.Error("the function runs")
		return nil
	})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
}
