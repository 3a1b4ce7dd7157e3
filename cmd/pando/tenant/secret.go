package tenant

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/cmd/pando/console"
)

// Secret returns `pando secret`.
func Secret(o *console.Console) *cobra.Command {
	c := &cobra.Command{
		Use: "secret", Short: "set, list and remove secrets",
		Long: "Look after the secrets in the store. A spec names them in `secrets`, and its instances\n" +
			"find them in /run/secrets. No command prints a content. SECRET is NAME, or TENANT/NAME.",
		Example: "  pando secret set db-password --file password.txt\n  pando secret ls",
	}
	c.AddCommand(secretSet(o), secretList(o), secretRemove(o))
	return c
}

// secretOf reads the words NAME and TENANT/NAME.
func secretOf(word string) (pando.SecretKey, error) {
	k := pando.SecretKey{Tenant: pando.DefaultTenant, Name: word}
	if tenant, name, ok := strings.Cut(word, "/"); ok {
		k = pando.SecretKey{Tenant: pando.Tenant(tenant), Name: name}
	}
	return k, k.Check()
}

func secretSet(o *console.Console) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "set SECRET", Short: "store a secret, or replace its content",
		Long: "Store a secret, encrypted, or replace its content. Running instances get the new\n" +
			"content in its file at once, and the signal `on_change` of their spec.",
		Example: "  pando secret set db-password --file password.txt\n" +
			"  openssl rand -hex 32 | pando secret set db-password --file -",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := secretOf(args[0])
			if err != nil {
				return err
			}
			content, err := secretContent(o, file)
			if err != nil {
				return err
			}
			st, err := api.SecretClient{Client: o.Client}.SetSecret(c.Context(), k, content)
			if err != nil {
				return err
			}
			return o.Out.Show(st, func(w io.Writer) {
				fmt.Fprintf(w, "secret %s is set, for %d services\n", k, len(st.Services))
			})
		},
	}
	c.Flags().StringVar(&file, "file", "-", "file with the content (- = standard input)")
	return o.Out.Flag(c)
}

// secretContent reads the content of a secret, byte by byte as it is.
func secretContent(o *console.Console, file string) ([]byte, error) {
	in := o.Out.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, noSecretFile(file, err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, pando.SecretBytesMax+1))
	switch {
	case err != nil:
		return nil, noSecretFile(file, err)
	case len(text) > pando.SecretBytesMax:
		return nil, fmt.Errorf("%w: the secret has more than %d bytes", pando.ErrTooLarge,
			pando.SecretBytesMax)
	case len(text) == 0 && file != "-":
		return nil, fmt.Errorf("%w: the secret is empty, because the file %s is; write the secret there",
			pando.ErrInvalid, file)
	case len(text) == 0:
		return nil, fmt.Errorf("%w: the secret is empty; write it to the standard input, or give its file "+
			"with --file", pando.ErrInvalid)
	}
	return text, nil
}

// noSecretFile explains why the file of a secret cannot be read.
func noSecretFile(file string, err error) error {
	return cli.OfFile("read the secret", file, "write the secret there, or name its file with --file",
		fmt.Errorf("read the secret: %w", err))
}

func secretList(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "ls", Short: "list the secrets", Example: "  pando secret ls", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := api.SecretClient{Client: o.Client}.Secrets(c.Context())
			if err != nil {
				return err
			}
			return o.Out.Show(all, func(w io.Writer) {
				if len(all) == 0 {
					fmt.Fprintln(w, "no secrets")
					return
				}
				rows := []string{console.Row("SECRET", "SET", "BY", "SERVICES")}
				for _, s := range all {
					rows = append(rows, console.Row(s.SecretKey, s.At.Local().Format("2006-01-02 15:04:05"), s.By,
						console.ServiceNames(s.Services)))
				}
				cli.Columns(w, rows...)
			})
		},
	})
}

func secretRemove(o *console.Console) *cobra.Command {
	return o.Out.Flag(&cobra.Command{
		Use: "rm SECRET", Short: "remove a secret that no service names",
		Example: "  pando secret rm db-password", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := secretOf(args[0])
			if err == nil {
				err = api.SecretClient{Client: o.Client}.RemoveSecret(c.Context(), k)
			}
			if err != nil {
				return err
			}
			return o.Out.Show(k, func(w io.Writer) { fmt.Fprintf(w, "secret %s is removed\n", k) })
		},
	})
}
