// Asks for the token when the server does not know this browser.

import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { partsOf } from '../api/client'
import { sessionError, signIn } from '../api/session'
import type { ErrorParts } from '../api/types'
import icon from '../assets/icon.svg'
import { ErrorPanel } from '../components/feedback'
import { queryValue } from '../routing/router'

/** What is said when the address had a code or a token that did not sign in. */
const REFUSED: ErrorParts = {
  type: 'NotAllowed',
  what: 'the token or the code in the address is not valid',
  next: 'open the address that flow web printed when it last started, which signs in once, or enter the token',
}

export function SignInPage(): JSX.Element {
  const [token, setToken] = useState('')
  const [error, setError] = useState<ErrorParts | null>(
    queryValue('sign-in') === 'refused' || queryValue('token') ? REFUSED : null,
  )
  const [isBusy, setBusy] = useState(false)
  useEffect(() => {
    document.title = 'Sign in · ematix-flow'
  }, [])
  const submit = async (event: Event) => {
    event.preventDefault()
    setBusy(true)
    try {
      await signIn(token.trim())
    } catch (problem) {
      setError(partsOf(problem))
      setBusy(false)
    }
  }
  return (
    <main class="sign-in" id="main">
      <h1 class="row">
        <img src={icon} alt="" width={28} height={28} /> ematix-flow
      </h1>
      <p>
        Enter the token that <code>flow web</code> was given, or that it printed when it started. The address
        that it prints on this machine signs you in by itself, once.
      </p>
      <form class="stack form" onSubmit={event => void submit(event)}>
        <label>
          Token
          <input
            class="field"
            type="password"
            name="token"
            autocomplete="current-password"
            required
            value={token}
            onInput={event => setToken(event.currentTarget.value)}
          />
        </label>
        <button type="submit" class="button primary" disabled={isBusy || token.trim() === ''}>
          Sign in
        </button>
      </form>
      <div aria-live="assertive">{error && <ErrorPanel error={error} />}</div>
    </main>
  )
}

export function NoServerPage({ retry }: { retry: () => void }): JSX.Element {
  return (
    <main class="sign-in" id="main">
      <h1>ematix-flow</h1>
      {sessionError.value && <ErrorPanel error={sessionError.value} retry={retry} />}
    </main>
  )
}
