package session

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// Any content arrives whole and in order, in frames of a bounded size.
func TestFramesArriveWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var wire, want, got bytes.Buffer
		w := NewWriter(&wire)
		for range rapid.IntRange(0, 4).Draw(t, "writes") {
			n := rapid.SampledFrom([]int{0, 1, 100, BytesMax, BytesMax + 1, 3 * BytesMax}).Draw(t, "size")
			b := bytes.Repeat([]byte{byte(n)}, n)
			want.Write(b)
			if k, err := w.Stream(Output).Write(b); k != n || err != nil {
				t.Fatal(k, err)
			}
		}
		for {
			k, b, err := Read(&wire)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || k != Output || len(b) > BytesMax {
				t.Fatal(k, len(b), err)
			}
			got.Write(b)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("%d bytes arrive of %d", got.Len(), want.Len())
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{1, 0, 0, 0, 2, 'h'})
	f.Add([]byte{7, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{1, 0, 0})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := bytes.NewReader(wire)
		for {
			_, b, err := Read(r)
			if err != nil {
				return
			}
			if len(b) > BytesMax {
				t.Errorf("a frame of %d bytes", len(b))
			}
		}
	})
}

func TestALargeFrameIsRefused(t *testing.T) {
	_, _, err := Read(bytes.NewReader([]byte{1, 0, 1, 0, 1}))
	if !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	_, _, err = Read(bytes.NewReader([]byte{1, 0, 0, 0, 9, 'x'}))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a torn frame: %v", err)
	}
}

// The output of a command arrives whole, though its caller sends input to the end. A relay ends
// when either side is gone.
func TestARelayEndsWithEitherSide(t *testing.T) {
	for _, first := range []string{"command", "caller"} {
		callerOuter, caller := net.Pipe()
		command, commandInner := net.Pipe()
		done := make(chan struct{})
		go func() {
			Relay(caller, command)
			close(done)
		}()
		if first == "command" {
			go func() {
				_, _ = commandInner.Write([]byte("last words"))
				commandInner.Close()
			}()
			b := make([]byte, 10)
			if _, err := io.ReadFull(callerOuter, b); err != nil || string(b) != "last words" {
				t.Errorf("%q, %v", b, err)
			}
		}
		callerOuter.Close()
		<-done
		if _, err := commandInner.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s first: the command is still connected", first)
		}
	}
}

func TestAnUpgradeCarriesFramesBothWays(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != Protocol {
			http.Error(w, "no upgrade", http.StatusUpgradeRequired)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		conn, err := Accept(w)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		k, b, err := Read(conn)
		if err == nil {
			err = NewWriter(conn).Send(k, bytes.ToUpper(b))
		}
		if err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	for _, offer := range []bool{true, false} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL,
			strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if offer {
			Offer(r.Header)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := Begun(resp)
		if !offer {
			if !errors.Is(err, pando.ErrInvalid) {
				t.Errorf("an answer without an upgrade: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := NewWriter(conn).Send(Input, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if k, b, err := Read(conn); k != Input || string(b) != "HELLO" || err != nil {
			t.Errorf("%d %q %v", k, b, err)
		}
		conn.Close()
	}
}

func TestASessionThatCannotBeTakenOverIsAnError(t *testing.T) {
	if _, err := Accept(httptest.NewRecorder()); err == nil {
		t.Error("a recorder has no connection")
	}
}
