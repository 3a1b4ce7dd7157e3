package instance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// onceRemoveMax bounds the removal of the service of one run.
const onceRemoveMax = 10 * time.Second

// once runs a command with a spec that is not deployed. Its service exists until the run ends.
func once(
	ctx context.Context, o *console.Console, s pando.Spec, command pando.SessionSpec, input bool,
) (err error) {
	s, err = s.Once(onceName(s.Name))
	if err != nil {
		return err
	}
	key := s.Key()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), onceRemoveMax)
		defer cancel()
		gone := o.Client.Remove(ctx, key, true)
		if gone != nil && !errors.Is(gone, pando.ErrNotFound) {
			fmt.Fprintf(o.Out.Stderr, "warning: %s is left (%s); remove it: pando rm --purge %s\n", key,
				cli.Clean(gone.Error()), key)
		}
	}()
	st, err := o.Client.Deploy(ctx, s)
	if err != nil {
		return err
	}
	for _, w := range st.Warnings {
		fmt.Fprintf(o.Out.Stderr, "warning: %s: %s\n", key, cli.Clean(w))
	}
	if len(command.Command) == 0 {
		if st, err = o.Client.Service(ctx, key); err != nil {
			return err
		}
		command.Command = st.Spec.Argv() // or those of its image
	}
	return attend(ctx, o, &command, input, func(ctx context.Context) (io.ReadWriteCloser, error) {
		return api.Runs(o.Client).Attach(ctx, key, command)
	})
}

// onceName returns the name of the service of one run.
func onceName(of pando.ServiceName) pando.ServiceName {
	const most = 30
	short := strings.TrimRight(string(of)[:min(len(of), most)], "-")
	return pando.ServiceName(short + "-run-" + strings.ToLower(rand.Text()[:5]))
}
