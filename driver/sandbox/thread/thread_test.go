package thread

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() { runtime.LockOSThread() } // TestMain stays on the first thread

// onFirst is the thread on which a function ran that the first thread was to run.
var onFirst int

func TestMain(m *testing.M) {
	own(func() { onFirst = unix.Gettid() })
	os.Exit(m.Run())
}

func TestTheFirstThreadRunsNothing(t *testing.T) {
	if onFirst == 0 || onFirst == unix.Getpid() {
		t.Errorf("the function ran on thread %d of process %d", onFirst, unix.Getpid())
	}
}

func TestAThreadEndsWithItsFunction(t *testing.T) {
	var id int
	Run(func() { id = unix.Gettid() })
	task := "/proc/self/task/" + strconv.Itoa(id)
	for end := time.Now().Add(time.Minute); ; runtime.Gosched() {
		if _, err := os.Stat(task); os.IsNotExist(err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("thread %d lives a minute later", id)
		}
	}
}
