package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Two drivers share the upper groups: one makes its group while the other prunes empty parents.
func TestAGroupIsMadeWhileItsParentsArePruned(t *testing.T) {
	for name, root := range map[string]string{"v1": Root, "v2": v2Root(t)} {
		t.Run(name, func(t *testing.T) {
			h, err := Open(root)
			if err != nil {
				t.Fatal(err)
			}
			top := fmt.Sprintf("cgtest%d", os.Getpid())
			parent := filepath.Join(top, "host", "tenant")
			done := make(chan struct{})
			var pruning sync.WaitGroup
			pruning.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						h.Prune(parent)
					}
				}
			})
			var makers sync.WaitGroup
			for n := range 2 {
				makers.Go(func() {
					for range 300 {
						if err := makeAndRemove(h, fmt.Sprintf("%s/%d", parent, n)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			makers.Wait()
			close(done)
			pruning.Wait()
			h.Prune(parent)
			for _, dir := range h.Roots() {
				if _, err := os.Stat(filepath.Join(dir, top)); !os.IsNotExist(err) {
					t.Errorf("%s is left in %s: %v", top, dir, err)
				}
			}
		})
	}
}

// makeAndRemove makes a group, looks at it and removes it.
func makeAndRemove(h Hierarchies, name string) error {
	made, err := h.Make(name)
	if err != nil {
		return err
	}
	if _, err := made.Processes(); err != nil {
		return err
	}
	return made.Remove()
}
