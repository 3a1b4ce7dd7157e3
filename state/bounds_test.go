package state

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pando.run/pando"
)

func TestWhatIsNotCommittedIsBounded(t *testing.T) {
	ctx := t.Context()
	b := must(Open(newMemory(), web, typed).Born(ctx, "web-1", pando.ObjectID{}))
	value := bytes.Repeat([]byte("x"), 1<<20)
	n := 0
	for err := error(nil); err == nil; n++ {
		if n > 100 {
			t.Fatal("100 MiB are written and not committed")
		}
		err = b.Put("blob/"+strings.Repeat("a", n+1), value)
		if err != nil && !errors.Is(err, pando.ErrTooLarge) {
			t.Fatal(err)
		}
	}
	if n != UncommittedBytesMax>>20 {
		t.Errorf("%d MiB were taken", n-1)
	}
	for range 100 {
		do(b.Put("blob/a", value[1:])) // a replacement of the same size is accepted
	}
	if err := b.Patch("log", value); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("a delta above the bound: %v", err)
	}
	if v, err := b.Get("log"); err == nil {
		t.Errorf("%d bytes of it are there", len(v.Bytes))
	}
	must(b.Commit(ctx, "all of it", t0))
	do(b.Put("blob/next", value))
	if b.held > 2<<20 {
		t.Errorf("after the commit %d bytes are held", b.held)
	}
}

func TestCountersHaveFewDigits(t *testing.T) {
	b := must(Open(newMemory(), web, typed).Born(t.Context(), "web-1", pando.ObjectID{}))
	most := strings.Repeat("9", CounterDigitsMax)
	do(b.Patch("hits", []byte(most)))
	do(b.Patch("hits", []byte("+1")))
	if v := must(b.Get("hits")); string(v.Bytes) != "1"+strings.Repeat("0", CounterDigitsMax) {
		t.Errorf("the sum is %s", v.Bytes)
	}
	for _, long := range []string{most + "9", "-" + most + "9"} {
		err := errors.Join(b.Patch("hits", []byte(long)), b.Put("hits", []byte(long)))
		if !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%d digits: %v", len(long), err)
		}
	}
	do(b.Put("hits", []byte("-"+most)))
}

func TestAMessageIsOneLine(t *testing.T) {
	r := Open(newMemory(), web, typed)
	b := must(r.Born(t.Context(), "web-1", pando.ObjectID{}))
	do(b.Put("x", []byte("1")))
	head := must(b.Commit(t.Context(), "one\ntwo\x1b[2J\x00"+strings.Repeat("ä", messageBytesMax), t0))
	line := must(r.Log(head, 1))[0].Message
	if !strings.HasPrefix(line, "one two [2J ä") || len(line) > messageBytesMax+4 ||
		strings.ContainsAny(line, "\x1b\x00\n") {
		t.Errorf("the message is %q", line)
	}
}
