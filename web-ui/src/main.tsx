// Starts the page.

import './styles/base.css'
import './styles/shell.css'
import './styles/parts.css'
import './styles/pages.css'
import { render } from 'preact'
import { listen } from './api/live'
import { openSession, session } from './api/session'
import { App } from './app'
import { startKeyboard } from './keyboard'
import { startRouter } from './routing/router'
import './theme'

startRouter()
startKeyboard()
const place = document.getElementById('app')
if (place) render(<App />, place)

let isListening = false
session.subscribe(state => {
  if (state !== 'open' || isListening) return
  isListening = true
  listen()
})
void openSession()
