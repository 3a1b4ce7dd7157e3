// Package image holds the commands about images.
package image

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
	"pando.run/pando/spec"
)

// Image returns `pando image`.
func Image(o *console.Console) *cobra.Command {
	c := &cobra.Command{
		Use: "image", Short: "build, pull, list, show and remove container images",
		Long: "Look after the images of the server's host. Other hosts get an image there when an\n" +
			"instance needs it. A host removes an image by itself when nothing has used it for a\n" +
			"week, or sooner while its images take more than 20 GiB.",
		Example: "  pando image pull shop/web:1.2\n  pando image ls",
	}
	c.AddCommand(imageBuild(o), imagePull(o), imageList(o), imageShow(o), imageRemove(o))
	return c
}

func imagePull(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "pull IMAGE", Short: "bring an image to the server's host",
		Long: "Bring an image to the server's host before a deploy needs it. IMAGE is a word as in a\n" +
			"spec: NAME[:TAG][@DIGEST], oci:FOLDER[:TAG] or docker-archive:FILE.",
		Example: "  pando image pull shop/web:1.2\n  pando image pull docker-archive:web.tar",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, err := filepath.Abs(".")
			if err != nil {
				return fmt.Errorf("find this folder: %w", err)
			}
			i, err := o.Client.PullImage(c.Context(), spec.Beside(dir, args[0]))
			if err != nil {
				return err
			}
			return o.Out.Show(i, func(w io.Writer) {
				fmt.Fprintf(w, "%s is here: %s, %s\n", args[0], i.Digest, mebibytes(i.Bytes()))
			})
		},
	})
}

func imageList(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "ls", Short: "list the images of the server's host", Example: "  pando image ls",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := o.Client.Images(c.Context())
			if err != nil {
				return err
			}
			return o.Out.Show(all, func(w io.Writer) { images(w, all) })
		},
	})
}

func images(w io.Writer, all []pando.ImageStatus) {
	rows := []string{console.Row("DIGEST", "SIZE", "LAYERS", "UNPACKED", "USED", "SERVICES", "NAMES")}
	for _, i := range all {
		unpacked := "no"
		if i.Unpacked {
			unpacked = "yes"
		}
		rows = append(rows, console.Row(console.ShortDigest(i.Digest), mebibytes(i.Bytes()), len(i.Layers), unpacked,
			i.Used.Local().Format("2006-01-02 15:04:05"), console.ServiceNames(i.Services),
			strings.Join(i.References, ", ")))
	}
	cli.Columns(w, rows...)
}

func imageShow(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "show IMAGE", Short: "show the words that an image gives to a spec",
		Long: "Show the layers and the configuration of an image. IMAGE is a name, a digest or the\n" +
			"first six digits of one. A spec wins over each of these words; `pando why SERVICE`\n" +
			"lists the words that an image gave to a service.",
		Example: "  pando image show shop/web:1.2\n  pando image show 4cd31f118e83",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			i, err := imageNamed(c.Context(), o, args[0])
			if err != nil {
				return err
			}
			return o.Out.Show(i, func(w io.Writer) { imageOf(w, i) })
		},
	})
}

func imageOf(w io.Writer, i pando.ImageStatus) {
	rows := []string{console.Row("digest", i.Digest), console.Row("names", strings.Join(i.References, ", ")),
		console.Row("architecture", i.Config.Architecture), console.Row("services", console.ServiceNames(i.Services))}
	add := func(word, value string) {
		if value != "" {
			rows = append(rows, console.Row(word, value))
		}
	}
	add("entrypoint", strings.Join(i.Config.Entrypoint, " "))
	add("command", strings.Join(i.Config.Command, " "))
	for _, k := range slices.Sorted(maps.Keys(i.Config.Environment)) {
		add("environment", k+"="+i.Config.Environment[k])
	}
	add("working_dir", i.Config.WorkingDir)
	add("user", i.Config.User)
	add("stop_signal", i.Config.StopSignal)
	add("health.live", strings.Join(i.Config.Health.Live.Command, " "))
	add("exposed ports", strings.Join(i.Config.Exposed, ", "))
	add("volumes", strings.Join(i.Config.Volumes, ", "))
	for _, l := range i.Layers {
		add("layer", fmt.Sprintf("%s %s", l.Digest, mebibytes(l.Bytes)))
	}
	cli.Columns(w, rows...)
}

func imageRemove(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "rm IMAGE", Short: "delete an image from the server's host",
		Long: "Delete an image that no service and no instance uses, with the layers that no other\n" +
			"image has. IMAGE is a name, a digest or the first six digits of one.",
		Example: "  pando image rm shop/web:1.2", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			i, err := imageNamed(c.Context(), o, args[0])
			if err != nil {
				return err
			}
			if err := o.Client.RemoveImage(c.Context(), i.Digest); err != nil {
				return err
			}
			return o.Out.Show(i, func(w io.Writer) { fmt.Fprintf(w, "removed %s\n", i.Digest) })
		},
	})
}

// imageNamed returns the image that a word names.
func imageNamed(ctx context.Context, o *console.Console, word string) (pando.ImageStatus, error) {
	all, err := o.Client.Images(ctx)
	if err != nil {
		return pando.ImageStatus{}, err
	}
	found := pando.ImagesMatching(all, word)
	if len(found) == 0 {
		if dir, err := filepath.Abs("."); err == nil {
			found = pando.ImagesMatching(all, spec.Beside(dir, word))
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return pando.ImageStatus{}, fmt.Errorf("image %s: %w; `pando image ls` lists them", word,
			pando.ErrNotFound)
	}
	return pando.ImageStatus{}, fmt.Errorf("%w: %s names %d images; give the digest of one "+
		"(`pando image ls`)", pando.ErrInvalid, word, len(found))
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
