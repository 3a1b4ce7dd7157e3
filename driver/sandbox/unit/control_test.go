package unit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// echo answers with a status that has the request as its name.
func echo(_ context.Context, words string) []byte { return fmt.Appendf(nil, `{"name":%q}`, words) }

func listen(t *testing.T, answer func(context.Context, string) []byte) (path string, s *Server) {
	t.Helper()
	path = ControlSocket(t.TempDir(), "g")
	s, err := Listen(path, answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return path, s
}

func TestARequestIsAnswered(t *testing.T) {
	path, s := listen(t, echo)
	for _, words := range []string{"status", "stop\n"} {
		got, err := Ask(path, words)
		if err != nil || got.Name != words[:len(got.Name)] || got.Name == "" {
			t.Errorf("%q is answered with %+v (%v)", words, got, err)
		}
	}
	s.Close()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, err := Ask(path, "status"); err == nil {
		t.Error("a closed server answers")
	}
}

func TestTheSocketOfADeadGroupIsReplaced(t *testing.T) {
	path := ControlSocket(t.TempDir(), "g")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Listen(path, echo)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := Ask(path, "status"); err != nil {
		t.Error(err)
	}
}

// The answer to stop is the last act of a group's process.
func TestCloseWaitsForAnswersAndNotForSilentCallers(t *testing.T) {
	asked, may := make(chan bool), make(chan bool)
	path, s := listen(t, func(ctx context.Context, words string) []byte {
		close(asked)
		<-may
		return echo(ctx, words)
	})
	silent, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	answered, closed := make(chan error, 1), make(chan bool)
	go func() {
		_, err := Ask(path, "stop")
		answered <- err
	}()
	<-asked
	go func() {
		s.Close()
		close(closed)
	}()
	// Close has begun when it closes the silent connection.
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("a silent caller was answered")
	}
	select {
	case <-closed:
		t.Error("Close did not wait for the answer")
	default:
	}
	close(may)
	<-closed
	if err := <-answered; err != nil {
		t.Errorf("the answer is lost: %v", err)
	}
}

func TestARequestWithoutAnAnswerIsClosed(t *testing.T) {
	path, _ := listen(t, func(context.Context, string) []byte { return nil })
	if s, err := Ask(path, "status"); err == nil {
		t.Errorf("the answer is %+v", s)
	}
}
