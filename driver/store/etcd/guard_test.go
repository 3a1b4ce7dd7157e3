package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// smallDisk mounts a tmpfs with room for one server.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	dir := tempDir(t)
	if err := unix.Mount("pando-test", dir, "tmpfs", 0, "size=160m"); err != nil {
		t.Skipf("tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// fill takes every free byte of a disk; the returned function frees them.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "somebody-elses")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

func TestAFullDiskRefusesWritesAndRecovers(t *testing.T) {
	dir := smallDisk(t)
	data := filepath.Join(dir, "s")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	s, endpoint := start(t, data)
	remote := dial(t, endpoint)
	put := pando.Txn{Put: []pando.Stored{service("web")}}
	commit(t, remote, put)

	free := fill(t, dir)
	for name, r := range map[string]*Registry{"in process": s.Registry(), "over the socket": remote} {
		for range 50 {
			_, err := r.Commit(t.Context(), put)
			if !errors.Is(err, pando.ErrStoreFull) || !strings.Contains(err.Error(), data) ||
				!strings.Contains(err.Error(), "make room") {
				t.Fatalf("%s: %v; want a refusal that names the directory", name, err)
			}
		}
		if snap, err := r.Snapshot(t.Context(), pando.Root); err != nil || len(snap.Records) == 0 {
			t.Fatalf("%s: a full store cannot be read: %v", name, err)
		}
		_, err := r.Commit(t.Context(), pando.Txn{Delete: []pando.Key{service("none").Key()}})
		if err != nil {
			t.Fatalf("%s: a full store cannot delete: %v", name, err)
		}
		why := pando.Decision{ID: "1", Service: service("none").ServiceKey}
		removal := pando.Txn{Put: []pando.Stored{why}, Delete: []pando.Key{service("none").Key()}}
		if _, err := r.Commit(t.Context(), removal); err != nil {
			t.Fatalf("%s: a full store cannot delete and write why: %v", name, err)
		}
		removal.Put = append(removal.Put, service("other"))
		if _, err := r.Commit(t.Context(), removal); !errors.Is(err, pando.ErrStoreFull) {
			t.Fatalf("%s: a full store writes a service beside a deletion: %v", name, err)
		}
		removal = pando.Txn{Put: []pando.Stored{why}}
		if _, err := r.Commit(t.Context(), removal); !errors.Is(err, pando.ErrStoreFull) {
			t.Fatalf("%s: a full store writes a decision without a deletion: %v", name, err)
		}
	}

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := start(t, data) // on a disk that is still full, which ends a bare etcd
	if _, err := again.Registry().Commit(t.Context(), put); !errors.Is(err, pando.ErrStoreFull) {
		t.Fatalf("after a restart: %v; want ErrStoreFull", err)
	}
	free()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := remote.Commit(ctx, put)
		if err == nil {
			break
		}
		if ctx.Err() != nil ||
			!errors.Is(err, pando.ErrStoreFull) && !errors.Is(err, pando.ErrUnavailable) {
			t.Fatalf("there is room again: %v", err)
		}
	}
	for i := range 200 {
		commit(t, again.Registry(), pando.Txn{Put: []pando.Stored{service(fmt.Sprintf("s%d", i))}})
	}
}

func TestQuotaAlarmIsLiftedAfterCompaction(t *testing.T) {
	s, _ := start(t, tempDir(t))
	r := s.Registry()
	commit(t, r, pando.Txn{Put: []pando.Stored{service("web")}})
	raise(t, s)
	deadline := time.After(patience)
	for {
		_, err := r.Commit(t.Context(), pando.Txn{Put: []pando.Stored{service("web")}})
		if err == nil {
			return
		}
		if !errors.Is(err, pando.ErrStoreFull) {
			t.Fatal(err)
		}
		select {
		case <-deadline:
			t.Fatalf("the alarm was not lifted: %v", err)
		default:
		}
	}
}

// raise sets the alarm that etcd itself sets when its database reaches the quota.
func raise(t *testing.T, s *Server) {
	t.Helper()
	if _, err := s.etcd.Server.Alarm(t.Context(), &pb.AlarmRequest{
		Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE,
		MemberID: uint64(s.etcd.Server.MemberID()),
	}); err != nil {
		t.Fatal(err)
	}
	if alarms := s.etcd.Server.Alarms(); len(alarms) == 0 {
		t.Log("the alarm was lifted before it was looked for")
	}
}
